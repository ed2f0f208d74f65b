//! The history of this session's cells, for front ends that search it.

use std::collections::{HashSet, VecDeque};

use jupyter_protocol::HistoryRequest;
use serde_json::{Value, json};

const MOST_CELLS: usize = 1_000;
const MOST_BYTES: usize = 8 << 20;
/// The number of the only session: cells from before this kernel's start are not known.
const SESSION: i32 = 1;

/// The newest cells of the session.
#[derive(Default)]
pub(super) struct History {
    cells: VecDeque<Cell>,
    bytes: usize,
}

struct Cell {
    number: u32,
    code: String,
    result: Option<String>,
}

impl History {
    pub(super) fn add(&mut self, number: u32, code: &str, result: Option<&str>) {
        self.cells.push_back(Cell {
            number,
            code: code.to_owned(),
            result: result.map(str::to_owned),
        });
        self.bytes += code.len() + result.map_or(0, str::len);
        while self.cells.len() > MOST_CELLS || self.bytes > MOST_BYTES {
            let Some(oldest) = self.cells.pop_front() else { break };
            self.bytes -= oldest.code.len() + oldest.result.as_deref().map_or(0, str::len);
        }
    }

    /// The cells that a request asks for, in Jupyter's form.
    pub(super) fn find(&self, request: &HistoryRequest) -> Vec<Value> {
        let newest = |cells: Vec<&Cell>, n: i32, output: bool| {
            let skipped = cells.len().saturating_sub(usize::try_from(n).unwrap_or(0));
            cells.into_iter().skip(skipped).map(|cell| cell.told(output)).collect()
        };
        match request {
            HistoryRequest::Tail { n, output, .. } => newest(self.cells.iter().collect(), *n, *output),
            HistoryRequest::Range {
                session,
                start,
                stop,
                output,
                ..
            } => {
                // Session 0 means the running session.
                let is_this = session.is_none_or(|session| session == 0 || session == SESSION);
                let numbers = i64::from(*start)..if *stop > 0 { i64::from(*stop) } else { i64::MAX };
                let cells = self.cells.iter();
                cells
                    .filter(|cell| is_this && numbers.contains(&i64::from(cell.number)))
                    .map(|cell| cell.told(*output))
                    .collect()
            }
            HistoryRequest::Search {
                pattern,
                unique,
                output,
                n,
                ..
            } => {
                let pattern: Vec<char> = pattern.chars().collect();
                let mut seen = HashSet::new();
                let found = self.cells.iter().rev();
                let found = found.filter(|cell| matches(&pattern, &cell.code));
                let mut found: Vec<_> = found
                    .filter(|cell| !unique || seen.insert(cell.code.as_str()))
                    .collect();
                found.reverse();
                newest(found, if *n > 0 { *n } else { i32::MAX }, *output)
            }
        }
    }
}

impl Cell {
    fn told(&self, output: bool) -> Value {
        if output {
            json!([SESSION, self.number, [self.code, self.result]])
        } else {
            json!([SESSION, self.number, self.code])
        }
    }
}

/// Returns true when a text matches a shell pattern: `*` is any text, `?` any character.
fn matches(pattern: &[char], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut in_text) = (0, 0);
    // After the newest star: the position in the pattern, and the end of the text that the star matched.
    let mut star = None;
    while in_text < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at + 1, in_text));
                at += 1;
            }
            Some(char) if *char == '?' || *char == text[in_text] => {
                at += 1;
                in_text += 1;
            }
            _ => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (at, in_text) = (after, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|char| *char == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History::default();
        for (number, code) in ["x = 1", "x", "y = 2", "x"].into_iter().enumerate() {
            history.add(u32::try_from(number).unwrap() + 1, code, (code == "x").then_some("1"));
        }
        history
    }

    #[test]
    fn the_newest_a_range_and_a_search() {
        let history = history();
        let tail = HistoryRequest::Tail {
            n: 2,
            output: true,
            raw: true,
        };
        assert_eq!(
            history.find(&tail),
            [json!([1, 3, ["y = 2", null]]), json!([1, 4, ["x", "1"]])]
        );
        let range = |session, start, stop| HistoryRequest::Range {
            session,
            start,
            stop,
            output: false,
            raw: true,
        };
        assert_eq!(
            history.find(&range(Some(0), 1, 3)),
            [json!([1, 1, "x = 1"]), json!([1, 2, "x"])]
        );
        assert!(history.find(&range(Some(-1), 1, 3)).is_empty());
        let search = |pattern: &str, unique| {
            history.find(&HistoryRequest::Search {
                pattern: pattern.to_owned(),
                unique,
                output: false,
                raw: true,
                n: 10,
            })
        };
        assert_eq!(search("x*", false).len(), 3);
        assert_eq!(search("x", true), [json!([1, 4, "x"])]);
        assert_eq!(search("* = ?", false).len(), 2);
        assert!(search("nothing*", false).is_empty());
    }

    #[test]
    fn old_cells_are_forgotten() {
        let mut history = history();
        let large = "z".repeat(MOST_BYTES);
        history.add(5, &large, None);
        assert_eq!((history.cells.len(), history.bytes), (1, MOST_BYTES));
        for number in 6..2_000 {
            history.add(number, "1", None);
        }
        assert_eq!((history.cells.len(), history.bytes), (MOST_CELLS, MOST_CELLS));
    }
}
