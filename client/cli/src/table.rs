//! Tables for people: aligned columns, sizes in binary units.
//!
//! A column is as wide as its widest cell, counted in characters.
//! Cells are expected to be printable already: `escape::cell` makes a name so.

use std::io;

/// On which side of its column a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table with a heading line.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: one cell per column, missing ones are empty.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert!(cells.len() <= self.columns.len());
        self.rows.push(cells);
    }

    /// Writes headings and rows.
    ///
    /// # Errors
    /// Whatever `out` reports.
    pub(crate) fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(heading, _)| heading.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let headings: Vec<&str> = self.columns.iter().map(|(heading, _)| *heading).collect();
        self.write_row(out, &widths, &headings)?;
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.write_row(out, &widths, &cells)?;
        }
        Ok(())
    }

    fn write_row(&self, out: &mut dyn io::Write, widths: &[usize], cells: &[&str]) -> io::Result<()> {
        let mut line = String::new();
        for (idx, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(widths[idx] - cell.chars().count());
            if idx > 0 {
                line.push_str("  ");
            }
            match self.columns[idx].1 {
                Align::Left => line.extend([cell, padding.as_str()]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// A size in the largest binary unit that leaves at least 1: `768 B`, `1.98 MiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.995 would be shown as 1024.00.
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// Saved percent of the raw size: negative where storing costs more, 0 for an empty tensor.
#[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
pub(crate) fn saved_percent(raw_bytes: u64, stored_bytes: u64) -> f64 {
    if raw_bytes == 0 { 0.0 } else { 100.0 * (1.0 - stored_bytes as f64 / raw_bytes as f64) }
}

/// A shape as `[2, 3]`; `[]` is a scalar's.
pub(crate) fn shape(shape: &[u64]) -> String {
    format!("{shape:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_text_left_and_numbers_right() {
        let mut table = Table::new(&[("name", Align::Left), ("raw", Align::Right), ("note", Align::Left)]);
        table.row(vec!["é".into(), "1.00 KiB".into(), "x".into()]);
        table.row(vec!["longer".into(), "3 B".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "name         raw  note\né       1.00 KiB  x\nlonger       3 B\n");
    }

    #[test]
    fn sizes_use_the_largest_fitting_unit() {
        let shown = [0, 1023, 1024, 1_048_575, 1 << 20, 2_081_266, 5 << 30, u64::MAX].map(size);
        let expected =
            ["0 B", "1023 B", "1.00 KiB", "1.00 MiB", "1.00 MiB", "1.98 MiB", "5.00 GiB", "16.00 EiB"];
        assert_eq!(shown, expected.map(String::from));
    }

    #[test]
    fn saved_percent_of_an_empty_tensor_is_zero() {
        assert_eq!(saved_percent(0, 0).to_bits(), 0.0_f64.to_bits());
        assert_eq!(saved_percent(100, 75).to_bits(), 25.0_f64.to_bits());
        assert!(saved_percent(100, 101) < 0.0);
    }
}
