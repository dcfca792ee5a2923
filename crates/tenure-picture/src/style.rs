//! Colours and type, for light and dark.

/// The style sheet of a picture. Nothing is told by colour alone: bars and marks differ in shape as well.
pub(crate) const STYLE: &str = "\
.tp{--ink:#1d2430;--soft:#5b6577;--line:#c9d0da;--paper:#fff;--belief:#2f6fb5;--inbelief:#fff;--store:#dfe7f1;\
--harm:#c4262e;--shade:#c4262e2b;--fault:#8a4b00;--good:#1d7a3c}\
@media(prefers-color-scheme:dark){.tp{--ink:#e6eaf0;--soft:#a3adbd;--line:#465063;--paper:#151a22;--belief:#6aa9ea;\
--inbelief:#0c121b;--store:#2c3747;--harm:#ff7a80;--shade:#ff7a8033;--fault:#f0a94b;--good:#63c784}}\
.tp text{font:11px/1.2 system-ui,sans-serif;fill:var(--ink)}\
.tp .paper{fill:var(--paper)}.tp .soft{fill:var(--soft)}.tp .name{font-weight:600}\
.tp .grid{stroke:var(--line);stroke-width:.5}.tp .base{stroke:var(--line);stroke-width:1}\
.tp .waits{fill:none;stroke:var(--soft);stroke-dasharray:3 2}.tp .believes{fill:var(--belief)}\
.tp .thin{fill:var(--soft);opacity:.55}.tp .holds{fill:var(--store);stroke:var(--soft);stroke-width:.5}.tp .stopped{fill:var(--paper);stroke:var(--ink)}\
.tp .in-believes{fill:var(--inbelief)}.tp .shade{fill:var(--shade);stroke:var(--harm);stroke-dasharray:2 2}\
.tp .harm{fill:var(--harm);font-weight:600}.tp .sign{stroke:var(--paper);stroke-width:1}\
.tp .sign.fault{fill:var(--fault)}.tp .sign.taken{fill:var(--good)}.tp .sign.harmful{fill:var(--harm)}\
.tp .sign.refused{fill:var(--soft)}.tp .sign.note{fill:var(--ink)}\
.tp .number{fill:var(--paper);font-size:8px;text-anchor:middle;font-weight:700}\
.tp .cross{stroke:var(--harm);stroke-width:2}.tp .hatch{stroke:var(--ink);stroke-width:1}";
