//! SVG chart of a simulation: admitted and rejected attempts over time, with one row of panels per
//! group and one column per run. Legible on light and dark backgrounds.

use std::fmt::Write;

use crate::LabeledResult;
use crate::scenario::Scenario;
use crate::simulation::{GroupResult, TimeSlice};

/// Width of the chart, in pixels: about the width of the text on a GitHub page.
const WIDTH_PX: f64 = 840.0;
const PANEL_HEIGHT_PX: f64 = 96.0;
const MARGIN_LEFT_PX: f64 = 56.0;
const MARGIN_TOP_PX: f64 = 64.0;
const PANEL_GAP_PX: f64 = 22.0;
const LABEL_HEIGHT_PX: f64 = 40.0;

/// Stylesheet of the chart. Its colors are distinguishable for people with red-green color
/// blindness, on light and dark backgrounds.
const STYLESHEET: &str = "text{fill:#333}.axis{stroke:#999}.yes{fill:#2b7a9b}.no{fill:#e08a3c}\
     @media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#777}.yes{fill:#4fa3c7}}";

/// Position and scale of one chart panel, in pixels and seconds.
struct Panel {
    x: f64,
    y: f64,
    width: f64,
    slice_s: f64,
    slices: usize,
    /// Attempt rate at the top edge of the panel, in attempts per second. All panels of a chart
    /// share this scale.
    rate_max: f64,
}

/// Returns an SVG chart of all runs of a scenario.
pub(super) fn render_svg(scenario: &Scenario, results: &[LabeledResult]) -> String {
    let groups = || results.iter().flat_map(|run| &run.result.groups);
    let rows = results.iter().map(|run| run.result.groups.len()).max().unwrap_or_default();
    let slices = groups().map(|group| group.slices.len()).max().unwrap_or_default().max(1);
    let slice_s = results.first().map_or(1.0, |run| run.result.slice_s);
    let rate = |slice: &TimeSlice| (slice.admitted + slice.refused) as f64 / slice_s;
    let rate_max = groups().flat_map(|group| &group.slices).map(rate).fold(1.0, f64::max);
    let columns = results.len().max(1) as f64;
    let width = (WIDTH_PX - MARGIN_LEFT_PX - PANEL_GAP_PX * columns) / columns;

    let mut out =
        svg_header(scenario, MARGIN_TOP_PX + (PANEL_HEIGHT_PX + LABEL_HEIGHT_PX) * rows as f64);
    for (column, run) in results.iter().enumerate() {
        for (row, group) in run.result.groups.iter().enumerate() {
            let x = MARGIN_LEFT_PX + (width + PANEL_GAP_PX) * column as f64;
            let y = MARGIN_TOP_PX + (PANEL_HEIGHT_PX + LABEL_HEIGHT_PX) * row as f64;
            let panel = Panel { x, y, width, slice_s, slices, rate_max };
            panel.draw(&mut out, group, run.label.as_deref());
            if column == 0 {
                panel.draw_axis(&mut out);
            }
        }
    }
    out.push_str("</svg>\n");
    out
}

fn svg_header(scenario: &Scenario, height: f64) -> String {
    let title = escape_xml(scenario.about.lines().next().unwrap_or_default().trim());
    let (second, label, second_label) =
        (MARGIN_LEFT_PX + 160.0, MARGIN_LEFT_PX + 15.0, MARGIN_LEFT_PX + 175.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH_PX} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n<style>{STYLESHEET}</style>\n\
         <text x=\"{MARGIN_LEFT_PX}\" y=\"18\" font-size=\"14\">{title}</text>\n\
         <rect class=\"yes\" x=\"{MARGIN_LEFT_PX}\" y=\"32\" width=\"10\" height=\"10\"/>\
         <text x=\"{label}\" y=\"41\">admitted per second</text>\n\
         <rect class=\"no\" x=\"{second}\" y=\"32\" width=\"10\" height=\"10\"/>\
         <text x=\"{second_label}\" y=\"41\">rejected per second</text>\n"
    )
}

impl Panel {
    fn draw(&self, out: &mut String, group: &GroupResult, label: Option<&str>) {
        let step = self.width / self.slices as f64;
        let scale = PANEL_HEIGHT_PX / self.rate_max / self.slice_s;
        let base = self.y + PANEL_HEIGHT_PX;
        for (nth, slice) in group.slices.iter().enumerate() {
            let x = self.x + step * nth as f64;
            let admitted = slice.admitted as f64 * scale;
            draw_bar(out, "yes", (x, base), (step * 0.88, admitted));
            draw_bar(out, "no", (x, base - admitted), (step * 0.88, slice.refused as f64 * scale));
        }
        let label = label.map_or(String::new(), |label| format!("{}, ", escape_xml(label)));
        let (x, right, below) = (self.x, self.x + self.width, base + 15.0);
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "<path class=\"axis\" fill=\"none\" d=\"M{x:.1} {:.1}V{base:.1}H{right:.1}\"/>\n\
             <text x=\"{x:.1}\" y=\"{below:.1}\">{label}{}: {} of {}</text>",
            self.y,
            escape_xml(&group.name),
            group.admitted,
            group.tries,
        );
    }

    fn draw_axis(&self, out: &mut String) {
        let x = self.x - 6.0;
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0}/s</text>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} s</text>",
            self.y + 10.0,
            self.rate_max,
            self.x + self.width,
            self.y + PANEL_HEIGHT_PX + 15.0,
            self.slices as f64 * self.slice_s,
        );
    }
}

/// Draws a bar with its lower left corner at (x, y).
fn draw_bar(out: &mut String, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    if height > 0.0 {
        let top = y - height;
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"/>"
        );
    }
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
