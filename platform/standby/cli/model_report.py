"""A model's manifest for people: what was found, and who can serve it."""

from __future__ import annotations

from typing import Any

from standby.cli.output import SHORT_DIGEST, moment, print_facts, print_table, size


def print_model(model: dict[str, Any]) -> None:
    """Print everything that the control API says of a model."""
    print_facts(
        [
            ("model", model["name"]),
            *_place(model),
            ("engine", model["engine"] or "none can serve it: see below"),
            ("options", ", ".join(f"{name}={value}" for name, value in model["engine_options"].items())),
            *_facts(model["facts"]),
            ("registered", moment(model["created_at"])),
            *_content(model),
        ]
    )
    _print_verdicts(model)
    for name, weights in model["weights"].items():
        print(f"\nweights {name}")
        rows = [*_place(weights), ("engine", weights["engine"] or "none can serve them: see below"), *_facts(weights["facts"])]
        print_facts([(f"  {title}", value) for title, value in (*rows, *_content(weights))])
        if weights["engine"] is None:
            _print_verdicts(weights)
    print()
    _print_files(model)
    for name, weights in model["weights"].items():
        print(f"\nweights {name}")
        _print_files(weights)


def _place(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    source = manifest["source"]
    return [
        ("version", manifest["digest"]),
        ("source", manifest["source_uri"]),
        ("endpoint", source["endpoint_url"] or ""),
        ("region", source["region"] or ""),
        ("read with", _rights(source) if manifest["source_uri"].startswith("s3:") else ""),
        ("format", manifest["format"]),
    ]


def _rights(source: dict[str, Any]) -> str:
    if source["anonymous"]:
        return "no credentials"
    return f"credentials {source['credentials']}" if source["credentials"] else "the platform's credentials"


def _facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    parameters, kv = facts["parameter_count"], facts["kv_bytes_per_token"]
    return [
        ("architecture", facts["architecture"]),
        ("title", facts["name"]),
        ("parameters", f"{parameters:,}" if parameters else ""),
        ("tensors", str(facts["tensor_count"] or "")),
        ("dtypes", ", ".join(facts["dtypes"])),
        ("quantisation", facts["quantisation"]),
        ("context", f"{facts['context_length']} tokens" if facts["context_length"] else ""),
        ("KV cache", f"{size(kv)} per token at 16 bits" if kv else ""),
        ("chat template", "yes" if facts["has_chat_template"] else "no"),
        ("tokenizer", "yes" if facts["has_tokenizer"] else "no"),
    ]


def _content(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    archive = manifest["archive"]
    rows = [("objects", f"{manifest['object_count']}, {size(manifest['bytes'])}")]
    if archive is not None:
        packed = "tar" if archive["compression"] == "none" else f"tar, {archive['compression']}"
        wrapper = f", wrapper folder {archive['wrapper']!r} left out" if archive["wrapper"] else ""
        rows.append(("archive", f"{packed}: {archive['member_count']} files, {size(archive['bytes'])}{wrapper}"))
    return [*rows, *(("note", note) for note in manifest["notes"])]


def _print_verdicts(manifest: dict[str, Any]) -> None:
    print()
    print_table(
        ("ENGINE", "CAN SERVE IT", "WHY NOT"),
        [(item["engine"], "yes" if item["serves"] else "no", item["reason"]) for item in manifest["engines"]],
        empty="",
    )


def _print_files(manifest: dict[str, Any]) -> None:
    print_table(
        ("PATH", "SIZE", "ETAG", "OBJECT VERSION"),
        [(item["path"], size(item["size"]), item["etag"], item["version_id"] or "") for item in manifest.get("objects", [])],
        empty="",
    )
    if manifest.get("members"):
        print(f"\nunpacked (version {manifest['digest'][:SHORT_DIGEST]})")
        print_table(("PATH", "SIZE"), [(item["path"], size(item["size"])) for item in manifest["members"]], empty="")
