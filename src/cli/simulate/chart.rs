//! The chart of a run: one panel per group, admitted and refused calls over time, as SVG that
//! reads on a light and on a dark page.
//!
//! Not here: numbers in tables (`report`).

use std::fmt::Write;

use super::run::{GroupRan, Ran, Slice};
use super::scenario::Scenario;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 120.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const GAP: f64 = 34.0;

/// The SVG text of a run.
pub fn svg(scenario: &Scenario, ran: &Ran) -> String {
    let height = TOP + (PANEL + GAP) * ran.groups.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>{title}</title>\n<style>text{{fill:#333}}.axis{{stroke:#999;stroke-width:1}}.yes{{fill:#2a7f62}}.no{{fill:#c8553d}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.axis{{stroke:#777}}.yes{{fill:#54b892}}.no{{fill:#e88a73}}}}</style>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n<rect class=\"yes\" x=\"{LEFT}\" y=\"31\" width=\"10\" height=\"10\"/><text x=\"{}\" y=\"40\">admitted per second</text>\n<rect class=\"no\" x=\"{}\" y=\"31\" width=\"10\" height=\"10\"/><text x=\"{}\" y=\"40\">refused per second</text>\n",
        LEFT + 14.0,
        LEFT + 150.0,
        LEFT + 164.0,
        title = escaped(scenario.about.trim()),
    );
    let slices = ran.groups.iter().map(|group| group.slices.len()).max().unwrap_or(1).max(1);
    let highest = |slice: &Slice| (slice.admitted + slice.refused) as f64 / ran.slice_s;
    let top = ran
        .groups
        .iter()
        .flat_map(|group| group.slices.iter().map(highest))
        .fold(f64::MIN_POSITIVE, f64::max);
    for (nth, group) in ran.groups.iter().enumerate() {
        let y = TOP + (PANEL + GAP) * nth as f64;
        panel(&mut out, group, y, ran.slice_s, slices, top);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, group: &GroupRan, y: f64, slice_s: f64, slices: usize, top: f64) {
    let width = (WIDTH - LEFT - 16.0) / slices as f64;
    let scale = PANEL / top / slice_s;
    for (nth, slice) in group.slices.iter().enumerate() {
        let x = LEFT + width * nth as f64;
        let (yes, no) = (slice.admitted as f64 * scale, slice.refused as f64 * scale);
        let mut bar = |class: &str, from: f64, tall: f64| {
            if tall > 0.0 {
                let _ = writeln!(
                    out,
                    "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"/>",
                    x + width * 0.06,
                    y + PANEL - from - tall,
                    width * 0.88,
                    tall
                );
            }
        };
        bar("yes", 0.0, yes);
        bar("no", yes, no);
    }
    let base = y + PANEL;
    let _ = writeln!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{base}\" x2=\"{}\" y2=\"{base}\"/>\n<line class=\"axis\" x1=\"{LEFT}\" y1=\"{y}\" x2=\"{LEFT}\" y2=\"{base}\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{top:.0}/s</text>\n<text x=\"{}\" y=\"{}\">{}: {} of {} calls admitted</text>\n<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0} s</text>",
        WIDTH - 16.0,
        LEFT - 6.0,
        y + 10.0,
        LEFT + 6.0,
        base + 16.0,
        escaped(&group.name),
        group.admitted,
        group.tries,
        WIDTH - 16.0,
        base + 16.0,
        slices as f64 * slice_s,
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
