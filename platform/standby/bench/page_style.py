"""The one style sheet of all report pages: light, dark and on paper."""

from __future__ import annotations

from typing import Final

# Eight hues that stay apart for people who see fewer colours, each in a shade for white and one for black ground.
_LIGHT: Final = ("#2a78d6", "#1baf7a", "#eda100", "#4a3aa7", "#e34948", "#008300", "#e87ba4", "#8a8984")
_DARK: Final = ("#3987e5", "#199e70", "#c98500", "#9085e9", "#e66767", "#35a335", "#d55181", "#7d7c78")
SERIES: Final = len(_LIGHT)


def _series(colours: tuple[str, ...]) -> str:
    return "".join(f"--s{number}:{colour};" for number, colour in enumerate(colours, 1))


_ON_WHITE: Final = (
    "--ground:#fff;--raised:#f6f6f3;--line:#dcdbd5;--text:#1b1b1a;--soft:#63625d;--good:#006c3b;--bad:#b3261e;"
    "--good-ground:#e3f4ea;--bad-ground:#fbe9e7;" + _series(_LIGHT)
)
_ON_BLACK: Final = (
    "--ground:#161615;--raised:#212120;--line:#3a3a37;--text:#eeeeea;--soft:#a6a59e;--good:#6fd39b;--bad:#ff8a80;"
    "--good-ground:#15301f;--bad-ground:#3a1a18;" + _series(_DARK)
)
_RULES: Final = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:62rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:2rem;line-height:1.2;margin:0 0 .4rem;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:1.3rem;line-height:1.3;margin:3rem 0 .6rem;padding-top:1.2rem;border-top:1px solid var(--line)}
p{margin:.5rem 0;max-width:46rem;overflow-wrap:anywhere}
.lead{font-size:1.1rem;color:var(--soft)}
.kicker{color:var(--soft);font-size:.8rem;letter-spacing:.08em;text-transform:uppercase;margin:0 0 .6rem}
.soft,.note,caption,footer{color:var(--soft)}
.note,caption{font-size:.85rem}
.good{color:var(--good)}.bad{color:var(--bad)}
.banner{padding:.7rem 1rem;border-radius:.5rem;background:var(--good-ground);color:var(--good);font-weight:600;max-width:none}
.banner.bad{background:var(--bad-ground);color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(17rem,1fr));
 gap:.8rem;margin:1.4rem 0;padding:0;list-style:none}
.tiles li{background:var(--raised);border-radius:.6rem;padding:.85rem 1rem}
.tiles b{display:block;font-size:1.65rem;line-height:1.25;font-weight:650;
 font-variant-numeric:tabular-nums;letter-spacing:-.02em}
.tiles span{display:block;font-size:.85rem;color:var(--soft);line-height:1.35}
.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{text-align:left;padding-bottom:.4rem}
th,td{text-align:left;vertical-align:top;padding:.42rem .9rem .42rem 0;border-bottom:1px solid var(--line)}
thead th{font-size:.78rem;color:var(--soft);font-weight:600;vertical-align:bottom}
tbody th{font-weight:600}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.n .note,td .note{display:block;white-space:normal}
.bars td,.bars th{border:0;padding:.22rem .8rem .22rem 0;vertical-align:middle}
.bars th{font-weight:500;width:17rem}.bars td.n{width:6rem;font-weight:600;padding-right:0}
.bars .note{display:block;font-weight:400;line-height:1.25}
svg{display:block;overflow:visible}
.track{fill:var(--raised)}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;padding:0;margin:.5rem 0;list-style:none;font-size:.85rem}
.legend li{display:flex;align-items:center;gap:.4rem}
figure{margin:1.2rem 0}
figcaption{font-weight:600;font-size:.95rem;margin-bottom:.3rem}
.plot{display:grid;grid-template-columns:4.2rem 1fr}
.plot text{font-size:12px;fill:var(--soft)}
.rule{stroke:var(--line);stroke-width:1}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.area{stroke:none}
.dots{fill:none;stroke-width:5;stroke-linecap:round}
pre{background:var(--raised);border-radius:.5rem;padding:.9rem 1rem;overflow-x:auto;
 font:.85rem/1.5 ui-monospace,Menlo,Consolas,monospace}
blockquote{margin:1rem 0;padding:.2rem 0 .2rem 1rem;border-left:3px solid var(--s1)}
blockquote p{font-size:1.1rem}
ul.plain{padding-left:1.1rem;max-width:46rem}
footer{margin-top:3rem;padding-top:1rem;border-top:1px solid var(--line);font-size:.85rem}
@media (max-width:36rem){.tiles{grid-template-columns:1fr 1fr}main{padding:1.5rem 1rem 3rem}h1{font-size:1.55rem}
 .bars th{width:7.5rem}.plot{grid-template-columns:3.2rem 1fr}}
"""
_CLASSES: Final = "".join(f".s{n}{{fill:var(--s{n});stroke:var(--s{n})}}" for n in range(1, SERIES + 1))
_PAPER: Final = """*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:11pt}main{max-width:none;padding:0}
h2{break-after:avoid}figure,tr,.tiles li,blockquote{break-inside:avoid}.scroll{overflow:visible}}"""
STYLE: Final = "".join(
    (
        f":root{{color-scheme:light dark;{_ON_WHITE}}}@media (prefers-color-scheme:dark){{:root{{{_ON_BLACK}}}}}",
        _RULES,
        _CLASSES,
        ".curve[class],.dots[class]{fill:none}.area[class]{stroke:none}",
        f"@media print{{:root{{color-scheme:light;{_ON_WHITE}}}",
        _PAPER,
    )
)
