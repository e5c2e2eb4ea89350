//! Growth curves as SVG: cost of a call against the number of rules, keys, or descriptors. Drawn from
//! the lines of a record that begin with `growth`.

use std::fmt::Write;

/// A chart: first word of its lines, title, name of the horizontal axis, whether the vertical axis is logarithmic.
const CHARTS: [(&str, &str, &str, bool); 3] = [
    ("rules", "CPU per call with two limits, in memory, µs", "rules of the domain", false),
    ("keys", "CPU per call with one limit, service and Redis, µs", "keys", false),
    ("descriptors", "CPU per call, service and Redis, µs", "descriptors of a call", true),
];
const COLORS: [&str; 3] = ["#2b7a9b", "#c2701d", "#7a5aa6"];

const WIDTH_PX: f64 = 840.0;
const HEIGHT_PX: f64 = 320.0;
const LEFT_PX: f64 = 56.0;
/// Room for the names of the lines.
const RIGHT_PX: f64 = 110.0;
const TOP_PX: f64 = 36.0;
const BOTTOM_PX: f64 = 44.0;
/// Between two names that would otherwise overlap.
const LINE_PX: f64 = 15.0;

/// A line of a chart.
struct Series {
    name: String,
    /// Number and microseconds.
    points: Vec<(f64, f64)>,
}

/// Returns file names and their charts.
pub fn draw(record: &str) -> Vec<(String, String)> {
    let chart = |(of, title, axis, is_log)| {
        (format!("{of}.svg"), Chart::new(read(record, of), title, axis, is_log).render())
    };
    CHARTS.map(chart).into()
}

fn read(record: &str, of: &str) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for line in record.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["growth", chart, name, number, cost] = words[..] else { continue };
        let (true, Ok(number), Ok(cost)) = (chart == of, number.parse(), cost.parse()) else {
            continue;
        };
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((number, cost)),
            None => all.push(Series { name: name.to_owned(), points: vec![(number, cost)] }),
        }
    }
    all
}

struct Chart {
    series: Vec<Series>,
    title: &'static str,
    axis: &'static str,
    is_log: bool,
    /// Bounds of both axes.
    x: (f64, f64),
    y: (f64, f64),
}

impl Chart {
    fn new(series: Vec<Series>, title: &'static str, axis: &'static str, is_log: bool) -> Chart {
        let points = || series.iter().flat_map(|series| &series.points);
        let x = points().fold((f64::MAX, 1.0), |(low, high), p| (p.0.min(low), p.0.max(high)));
        let most = points().fold(1.0, |most: f64, point| point.1.max(most));
        let power = 10_f64.powf(most.log10().floor());
        let y = match is_log {
            true => (1.0, 10_f64.powf(most.log10().ceil())),
            false => (0.0, (most / power).ceil() * power),
        };
        Chart { series, title, axis, is_log, x, y }
    }

    fn x_px(&self, number: f64) -> f64 {
        let share = (number / self.x.0).log10() / (self.x.1 / self.x.0).log10();
        LEFT_PX + share * (WIDTH_PX - LEFT_PX - RIGHT_PX)
    }

    fn y_px(&self, cost: f64) -> f64 {
        let share = match self.is_log {
            true => (cost / self.y.0).log10() / (self.y.1 / self.y.0).log10(),
            false => cost / self.y.1,
        };
        HEIGHT_PX - BOTTOM_PX - share * (HEIGHT_PX - TOP_PX - BOTTOM_PX)
    }

    fn render(&self) -> String {
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH_PX} {HEIGHT_PX}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>{0}</title>\n\
             <style>text{{fill:#333}}.grid{{stroke:#999;stroke-opacity:.4}}\
             @media(prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n\
             <text x=\"{LEFT_PX}\" y=\"18\" font-size=\"14\">{0}</text>\n",
            self.title
        );
        self.draw_axes(&mut out);
        let mut names: Vec<(f64, usize)> = Vec::new();
        for (nth, series) in self.series.iter().enumerate() {
            self.draw_series(&mut out, series, COLORS[nth % COLORS.len()]);
            let last = series.points.last().map_or(self.y.0, |point| point.1);
            names.push((self.y_px(last), nth));
        }
        self.draw_names(&mut out, names);
        out.push_str("</svg>\n");
        out
    }

    fn draw_axes(&self, out: &mut String) {
        let (right, bottom) = (WIDTH_PX - RIGHT_PX, HEIGHT_PX - BOTTOM_PX);
        let mut number = self.x.0;
        while number <= self.x.1 {
            let x = self.x_px(number);
            // Writing into a String cannot fail.
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {TOP_PX}V{bottom}\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                with_commas(number)
            );
            number *= 10.0;
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT_PX + right) / 2.0,
            bottom + 34.0,
            self.axis
        );
        for cost in self.ticks() {
            let y = self.y_px(cost);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT_PX} {y:.1}H{right}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT_PX - 6.0,
                y + 4.0,
                with_commas(cost)
            );
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.y.1 / self.y.0).log10().round() as i32;
            return (0..=decades).map(|power| self.y.0 * 10_f64.powi(power)).collect();
        }
        let power = 10_f64.powf((self.y.1 / 2.0).log10().floor());
        let steps = (self.y.1 / power).round() as usize;
        let every = steps.div_ceil(5).max(1);
        (0..=steps).step_by(every).map(|step| step as f64 * power).collect()
    }

    fn draw_series(&self, out: &mut String, series: &Series, color: &str) {
        let path: Vec<String> = series
            .points
            .iter()
            .map(|(number, cost)| format!("{:.1} {:.1}", self.x_px(*number), self.y_px(*cost)))
            .collect();
        let _ = writeln!(
            out,
            "<path fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" d=\"M{}\"/>",
            path.join("L")
        );
        for (number, cost) in &series.points {
            let _ = writeln!(
                out,
                "<circle fill=\"{color}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}, {}: {cost} µs</title></circle>",
                self.x_px(*number),
                self.y_px(*cost),
                series.name,
                with_commas(*number)
            );
        }
    }

    /// Writes each name beside the end of its line, below the name before it if they would overlap.
    fn draw_names(&self, out: &mut String, mut names: Vec<(f64, usize)>) {
        names.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut free = f64::MIN;
        for (y, nth) in names {
            let y = y.max(free);
            free = y + LINE_PX;
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{:.1}\" style=\"fill:{}\">{}</text>",
                WIDTH_PX - RIGHT_PX + 8.0,
                y + 4.0,
                COLORS[nth % COLORS.len()],
                self.series[nth].name
            );
        }
    }
}

fn with_commas(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
