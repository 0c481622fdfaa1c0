//! A plan as one HTML page that needs nothing else: totals, commands, a drawing of who lives in which slot when,
//! buffers, and the WGSL of every kernel.

use crate::plan::{Buffer, BufferId, BufferKind, Cmd, Kernel, KernelId, Plan, SlotId};
use crate::plan_text::{argument, count, kernel_values, label, labels};

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em;color:#222}\
table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid #ddd;padding:.2em .6em;text-align:left;vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}pre{background:#f6f6f6;padding:1em;overflow-x:auto}\
code,pre{font:12px/1.4 ui-monospace,monospace}summary{cursor:pointer}.wide{overflow-x:auto}\
svg text{font:11px ui-monospace,monospace}tr:target{background:#ffd}";

/// Height of a slot's row in the drawing, and of the letters in it.
const ROW: usize = 20;
/// Width of the column with the slots' names.
const MARGIN: usize = 170;

/// The page. `texts` are further texts to show, each with its title, such as the graph before and after passes.
#[must_use]
pub fn plan_html(plan: &Plan, texts: &[(&str, &str)]) -> String {
    let title = escape(&plan.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n<body>\n"
    );
    page += &format!("<h1>{title}</h1>\n{}", summary(plan));
    page += &section("Commands", &commands(plan));
    page += &section("Slots", &timeline(plan));
    page += &section("Buffers", &buffers(plan));
    page += &section("Kernels", &kernels(plan));
    page += &section("Not fused", &list(&plan.not_fused));
    for (title, text) in texts {
        page += &details(&escape(title), text);
    }
    page += "</body></html>\n";
    page
}

fn summary(plan: &Plan) -> String {
    let totals = plan.totals();
    let dispatches = count(plan.cmds.len(), "dispatch", "dispatches");
    let kernels = count(plan.kernels.len(), "kernel", "kernels");
    format!(
        "<p>Target {}: {dispatches} of {kernels}; {} flops, {} bytes moved.</p>\n\
         <p>Memory: weights {} bytes, states {}, inputs and outputs {}, slots {} (no assignment needs less than {}).</p>\n",
        escape(&plan.target),
        totals.flops,
        totals.bytes_moved,
        totals.params_bytes,
        totals.states_bytes,
        totals.io_bytes,
        totals.slots_bytes,
        plan.live_bytes
    )
}

fn section(title: &str, body: &str) -> String {
    if body.is_empty() { String::new() } else { format!("<h2>{title}</h2>\n{body}") }
}

fn list(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
    format!("<ul>\n{items}</ul>\n")
}

fn details(summary: &str, text: &str) -> String {
    format!("<details><summary>{summary}</summary><pre>{}</pre></details>\n", escape(text))
}

/// A table; columns whose title starts with `#` hold numbers.
fn table(columns: &[&str], rows: &[Vec<String>], row_id: &str) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let class = |column: &str| if column.starts_with('#') { " class=\"n\"" } else { "" };
    let head: String = columns.iter().map(|column| format!("<th{}>{}</th>", class(column), column.trim_start_matches('#'))).collect();
    let mut html = format!("<div class=\"wide\"><table>\n<tr>{head}</tr>\n");
    for (idx, row) in rows.iter().enumerate() {
        let cells: String = row.iter().zip(columns).map(|(cell, column)| format!("<td{}>{cell}</td>", class(column))).collect();
        html += &format!("<tr id=\"{row_id}{idx}\">{cells}</tr>\n");
    }
    html + "</table></div>\n"
}

fn commands(plan: &Plan) -> String {
    let row = |(idx, cmd): (usize, &Cmd)| {
        let args: Vec<String> = cmd.args.iter().map(|arg| format!("<code>{}</code>", escape(&argument(plan, arg)))).collect();
        let kernel = plan.kernels.get(cmd.kernel.0 as usize);
        vec![
            idx.to_string(),
            format!("<a href=\"#{0}\">{0}</a> {1}", cmd.kernel, kernel.map_or_else(String::new, |kernel| escape(&kernel.label))),
            format!("{:?}", cmd.workgroups),
            args.join("<br>"),
            format!("{:?}", cmd.dims),
            kernel.map_or(0, |kernel| cmd.invocations(kernel)).to_string(),
            cmd.loop_trips.to_string(),
            cmd.flops.to_string(),
            cmd.bytes_moved.to_string(),
            format!("{}<br>{}", escape(&cmd.scope), escape(&cmd.computes)),
        ]
    };
    let columns = ["#", "kernel", "workgroups", "arguments", "sizes", "#invocations", "#loop trips", "#flops", "#bytes", "computes"];
    table(&columns, &plan.cmds.iter().enumerate().map(row).collect::<Vec<_>>(), "cmd")
}

fn buffers(plan: &Plan) -> String {
    let row = |(id, buffer): (BufferId, &Buffer)| {
        let what = match &buffer.kind {
            BufferKind::Pack { parts } => {
                let lines: Vec<String> =
                    parts.iter().map(|part| escape(&format!("{} {} at {}", part.name, part.ty, part.offset_bytes))).collect();
                lines.join("<br>")
            }
            BufferKind::State { name, storage, .. } => format!("{} ({})", escape(name), storage.word()),
            BufferKind::Input { name, .. } | BufferKind::Param { name, .. } | BufferKind::Output { name, .. } => escape(name),
        };
        let value = |id: Option<crate::plan::PlanValueId>| id.map_or_else(String::new, |id| escape(&label(plan, id)));
        let ty = buffer.ty().map_or_else(String::new, ToString::to_string);
        vec![
            id.to_string(),
            buffer.kind.word().to_owned(),
            what,
            ty,
            buffer.size_bytes.to_string(),
            value(buffer.holds),
            value(buffer.receives),
        ]
    };
    let rows: Vec<Vec<String>> = (0..).map(BufferId).zip(&plan.buffers).map(row).collect();
    table(&["", "kind", "name", "type", "#bytes", "holds", "receives"], &rows, "b")
}

fn kernels(plan: &Plan) -> String {
    let one = |(id, kernel): (KernelId, &Kernel)| {
        let about = format!("{id} {} workgroup {:?}, writes {}", kernel.label, kernel.workgroup_size, kernel_values(plan, id));
        format!("<div id=\"{id}\">{}</div>\n", details(&escape(&about), &kernel.wgsl))
    };
    (0..).map(KernelId).zip(&plan.kernels).map(one).collect()
}

/// A row a slot, a column a command, a box a value.
fn timeline(plan: &Plan) -> String {
    if plan.slots.is_empty() {
        return String::new();
    }
    let step = (900 / plan.cmds.len().max(1)).clamp(4, 60);
    let (width, height) = (MARGIN + step * plan.cmds.len(), ROW * (plan.slots.len() + 1));
    let mut svg = format!(
        "<div class=\"wide\"><svg width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"values in slots over commands\">\n"
    );
    let every = 30_usize.div_ceil(step);
    for cmd in (0..plan.cmds.len()).step_by(every) {
        svg += &format!("<text x=\"{}\" y=\"14\" fill=\"#888\">{cmd}</text>\n", MARGIN + cmd * step);
    }
    for ((id, slot), row) in (0..).map(SlotId).zip(&plan.slots).zip(1..) {
        let y = row * ROW;
        svg += &format!("<text x=\"0\" y=\"{}\">{id} {} bytes</text>\n", y + 14, slot.size_bytes);
        for one in &slot.residents {
            let x = MARGIN + one.first_cmd * step;
            let long = (one.last_cmd + 1).saturating_sub(one.first_cmd) * step;
            let hue = one.value.index() * 47 % 360;
            let text = escape(&labels(plan, &[one.value]));
            let about = format!("{text} lives in commands {} to {}", one.first_cmd, one.last_cmd);
            svg += &format!(
                "<g><title>{about}</title><rect x=\"{x}\" y=\"{}\" width=\"{long}\" height=\"{}\" fill=\"hsl({hue} 60% 80%)\" stroke=\"#666\"/>",
                y + 1,
                ROW - 2
            );
            if text.len() * 7 < long {
                svg += &format!("<text x=\"{}\" y=\"{}\">{text}</text>", x + 3, y + 14);
            }
            svg += "</g>\n";
        }
    }
    svg + "</svg></div>\n"
}

/// Text as it may stand in HTML, in quotes as well.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_verify::tests::sound_plan;

    #[test]
    fn the_page_shows_commands_slots_and_kernels() {
        let page = plan_html(&sound_plan(), &[("graph", "%0 = input \"x\" : f32[16]")]);
        for part in ["<h1>sound</h1>", "update b3 = %4 -&gt; %5", "%9.carry lives in commands 1 to 2", "// norm", "&quot;x&quot; : f32[16]"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<rect").count(), 4);
        assert_eq!(page.matches("<tr id=\"cmd").count(), 8);
        assert_eq!(page, plan_html(&sound_plan(), &[("graph", "%0 = input \"x\" : f32[16]")]));
    }

    #[test]
    fn every_element_is_closed_and_no_text_is_markup() {
        let mut plan = sound_plan();
        plan.name = "<script>alert('x')</script>".to_owned();
        plan.not_fused.push("a < b & c".to_owned());
        for page in [plan_html(&plan, &[]), plan_html(&Plan::default(), &[])] {
            assert!(!page.contains("<script") && !page.contains("http"));
            for tag in ["html", "body", "table", "tr", "td", "svg", "g", "details", "pre", "div", "ul", "li"] {
                let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
                assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
            }
        }
    }
}
