#pragma once
// The style sheet of report pages. Its eight colours can be distinguished with colour blindness, in the light and in
// the dark theme.

namespace trainer::report {

inline constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark;
  --bg: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #5b6775; --rule: #dfe4ea; --grid: #e9edf2;
  --c0: #2563b0; --c1: #d1631a; --c2: #1f8a70; --c3: #a3417f; --c4: #8a6d00; --c5: #5a5fc7; --c6: #4a7a96; --c7: #8b95a1; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #12161c; --card: #1b212a; --ink: #e6ebf1; --soft: #9aa7b5; --rule: #313b47; --grid: #28313c;
  --c0: #6ea8f0; --c1: #f29a5b; --c2: #53c7a8; --c3: #e08bc0; --c4: #d9bb4a; --c5: #a2a6f5; --c6: #8cbcd6; --c7: #7c8896; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 1.7rem; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 10px; }
.sub { color: var(--soft); margin: 4px 0 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 12px; margin: 0 0 16px; padding: 0; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 12px 14px; }
.tile dt { color: var(--soft); font-size: 0.8rem; }
.tile dd { margin: 2px 0 0; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile dd small { display: block; font-size: 0.78rem; font-weight: 400; color: var(--soft); }
section { padding: 16px; margin: 0 0 16px; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 16px; margin: 0 0 16px; }
.two section { min-width: 0; margin: 0; }
figure { margin: 0; overflow-x: auto; }
figure svg { min-width: 400px; } figure.wide svg { min-width: 820px; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, "Segoe UI", Roboto, sans-serif; }
svg text { fill: var(--soft); }
svg .title { fill: var(--ink); font-size: 14px; font-weight: 600; }
svg .key, svg .y, svg text.level { text-anchor: end; }
svg .x, svg .none { text-anchor: middle; }
svg .key, svg .value { fill: var(--ink); }
svg path { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg path.faint { stroke-width: 1; opacity: 0.4; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--rule); }
svg text.level { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
svg line.level { stroke: var(--soft); stroke-dasharray: 5 4; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); } .s6 { stroke: var(--c6); } .s7 { stroke: var(--c7); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.f4 { fill: var(--c4); } .f5 { fill: var(--c5); } .f6 { fill: var(--c6); } .f7 { fill: var(--c7); }
.b0 { background: var(--c0); } .b1 { background: var(--c1); } .b2 { background: var(--c2); } .b3 { background: var(--c3); }
.b4 { background: var(--c4); } .b5 { background: var(--c5); } .b6 { background: var(--c6); } .b7 { background: var(--c7); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 400; color: var(--soft); padding: 4px 12px 4px 0; vertical-align: top; white-space: nowrap; }
td { padding: 4px 0; overflow-wrap: anywhere; }
tr + tr > * { border-top: 1px solid var(--grid); }
.scroll { overflow-x: auto; }
.grid thead th { color: var(--ink); font-weight: 600; text-align: right; padding-left: 16px; }
.grid td { text-align: right; padding-left: 16px; white-space: nowrap; } .grid .marked td { font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; margin: 0 0 16px; padding: 0; }
.legend li { overflow-wrap: anywhere; }
.parts { margin-top: 6px; } .parts td { text-align: right; padding-left: 12px; white-space: nowrap; }
.chip { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 2px; margin-right: 8px; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
blockquote { margin: 0 0 14px; padding: 10px 14px; border-left: 3px solid var(--c2); background: var(--bg); white-space: pre-wrap;
  overflow-wrap: anywhere; font-family: Georgia, "DejaVu Serif", serif; }
blockquote b { font-weight: 600; color: var(--c2); }
.at { color: var(--soft); font-size: 0.8rem; margin: 0 0 4px; }
summary { cursor: pointer; font-weight: 600; } details[open] summary { margin-bottom: 10px; }
footer { color: var(--soft); font-size: 0.8rem; }
@media print { body { background: none; } section, .tile { break-inside: avoid; } }
)css";

}  // namespace trainer::report
