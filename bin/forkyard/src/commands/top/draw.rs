//! The table on a terminal.

use super::rows::{HEADS, Row};
use forkyard_types::ByteCount;
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{self, Table},
};

/// Width of a column of numbers.
const NUMBER: u16 = 10;

/// Draws everything. VMs that do not fit below are counted, not shown.
pub fn table(frame: &mut Frame<'_>, rows: &[Row], cpus: u32) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(summary(rows, cpus)).style(Modifier::BOLD), head);
    let fits = usize::from(body.height.saturating_sub(1));
    let shown = rows.iter().take(fits).map(|row| {
        let style = match row.cpu_percent {
            busy if busy >= 50.0 => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        };
        widgets::Row::new(row.cells()).style(style)
    });
    let mut widths = [Constraint::Length(NUMBER); HEADS.len()];
    widths[0] = Constraint::Fill(1);
    let table = Table::new(shown, widths)
        .header(widgets::Row::new(HEADS).style(Modifier::REVERSED))
        .column_spacing(1);
    frame.render_widget(table, body);
    let hidden = rows.len().saturating_sub(fits);
    let foot_text = match hidden {
        0 => "q leaves".to_owned(),
        n => format!("q leaves; {n} more VMs below"),
    };
    frame.render_widget(Line::from(foot_text), foot);
}

fn summary(rows: &[Row], cpus: u32) -> String {
    let cpu: f64 = rows.iter().map(|row| row.cpu_percent).sum();
    let private = rows.iter().map(|row| row.private.0).sum();
    format!(
        "{} VMs  CPU {cpu:.1}% of {}%  private {}",
        rows.len(),
        u64::from(cpus) * 100,
        ByteCount(private)
    )
}

#[cfg(test)]
mod tests {
    use super::{super::rows::tests, *};
    use forkyard_types::FamilyId;
    use ratatui::{Terminal, backend::TestBackend};

    fn screen(rows: &[Row], height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, height)).expect("a terminal");
        terminal.draw(|frame| table(frame, rows, 2)).expect("drawn");
        terminal.backend().to_string()
    }

    fn some() -> Vec<Row> {
        let family = FamilyId::random();
        let p = tests::vm("p", family, 0, None);
        let clone = tests::vm("p-1", family, 1, Some(p.vm.id));
        let usage = tests::at(1, &[p, clone]);
        super::super::rows::rows(&usage, &usage)
    }

    #[test]
    fn every_vm_and_the_sum_of_all_are_on_the_screen() {
        let screen = screen(&some(), 10);
        for text in [
            "2 VMs",
            "of 200%",
            "private 2 MiB",
            "  p-1",
            "running",
            "256 MiB",
        ] {
            assert!(screen.contains(text), "{text}:\n{screen}");
        }
    }

    #[test]
    fn vms_that_do_not_fit_are_counted() {
        let screen = screen(&some(), 4);
        assert!(screen.contains("1 more VMs below"), "{screen}");
        assert!(!screen.contains("p-1"), "{screen}");
    }
}
