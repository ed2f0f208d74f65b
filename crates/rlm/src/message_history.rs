//! The messages of a run, kept within a number of tokens. Rules and task stay, and the newest turns stay whole. Older turns are first
//! shortened, then summed up in a line each, then in one line together.
//!
//! No model does this work, so a replayed run gets the same messages. If the messages are too long, they are shortened to half of the
//! limit. Their beginning then stays the same for many turns, which is cheaper at endpoints that cache prompts.
//!
//! Decisions: `docs/internals/controller.md`.

use std::borrow::Cow;

use super::{Message, Role, estimate_tokens, middle_cut};

/// Tokens that a message counts besides its text.
const MESSAGE_TOKENS: usize = 8;
/// Tokens that a last line counts. They are the same for each, so that what is left of the budget has no effect on the shortening.
const LINE_TOKENS: usize = 64;
/// Characters that are kept of a shortened reply.
const SHORT_REPLY_CHARS: usize = 1_500;
/// Characters that are kept of shortened output.
const SHORT_OUTPUT_CHARS: usize = 600;

/// The messages of a run. The [module](self) describes them.
#[derive(Debug, Clone)]
pub struct MessageHistory {
    rules: String,
    task: String,
    /// The last line of the task.
    line: String,
    turns: Vec<Turn>,
    max_tokens: usize,
}

/// A reply of the model, and the next message to the model.
#[derive(Debug, Clone)]
struct Turn {
    reply: String,
    feedback: String,
    /// The last line of the feedback, as long as the turn is whole.
    line: String,
    blocks: usize,
    form: Form,
}

/// The form in which a turn is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Whole,
    Short,
    Line,
    Gone,
}

impl Form {
    fn next(self) -> Self {
        match self {
            Self::Whole => Self::Short,
            Self::Short => Self::Line,
            Self::Line | Self::Gone => Self::Gone,
        }
    }
}

/// A shortening of older turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    /// Tokens of the messages before.
    pub before: usize,
    /// Tokens of the messages after.
    pub after: usize,
    /// The number of turns that are no longer shown whole.
    pub turns: usize,
}

impl MessageHistory {
    /// A history that begins with the rules and the task, whose last line is `line`. `max_tokens` limits all messages together.
    pub fn new(rules: String, task: String, line: String, max_tokens: usize) -> Self {
        Self {
            rules,
            task,
            line,
            turns: Vec::new(),
            max_tokens,
        }
    }

    /// Tokens of the rules and the task. These are never shortened.
    pub fn fixed_tokens(&self) -> usize {
        tokens(&self.rules) + tokens(&self.task) + LINE_TOKENS
    }

    /// Adds a turn: a reply, the number of its blocks of code, the report of their outcomes, and its last line.
    pub fn add(&mut self, reply: String, blocks: usize, feedback: String, line: String) {
        self.turns.push(Turn {
            reply,
            feedback,
            line,
            blocks,
            form: Form::Whole,
        });
    }

    /// Shortens older turns if the messages are too long.
    pub fn compact(&mut self) -> Option<Compaction> {
        let before = self.tokens();
        if before <= self.max_tokens {
            return None;
        }
        let target = (self.fixed_tokens() + self.max_tokens) / 2;
        let newest = self.turns.len().saturating_sub(1);
        let mut now = before;
        for form in [Form::Short, Form::Line, Form::Gone] {
            for index in 0..newest {
                if now <= target {
                    break;
                }
                if self.turns[index].form < form {
                    now = now.saturating_sub(self.turns[index].tokens(index + 1));
                    self.turns[index].form = self.turns[index].form.next();
                    now += self.turns[index].tokens(index + 1);
                }
            }
        }
        self.cut_newest();
        Some(Compaction {
            before,
            after: self.tokens(),
            turns: self.turns.iter().filter(|turn| turn.form > Form::Whole).count(),
        })
    }

    /// Cuts the newest turn if it is too long by itself.
    fn cut_newest(&mut self) {
        let Some(newest) = self.turns.last().cloned() else {
            return;
        };
        let mut most_chars = self.max_tokens.saturating_mul(2);
        while self.tokens() > self.max_tokens && most_chars > 0 {
            if let Some(turn) = self.turns.last_mut() {
                turn.reply = middle_cut(&newest.reply, most_chars);
                turn.feedback = middle_cut(&newest.feedback, most_chars);
            }
            most_chars /= 2;
        }
    }

    /// The messages for the model.
    pub fn messages(&self) -> Vec<Message> {
        let mut messages = vec![Message::new(Role::System, self.rules.clone())];
        messages.push(Message::new(Role::User, self.opening()));
        for (index, turn) in self.turns.iter().enumerate().skip(self.gone()) {
            let [reply, feedback] = turn.shown(index + 1);
            messages.push(Message::new(Role::Assistant, reply));
            messages.push(Message::new(Role::User, feedback));
        }
        messages
    }

    /// The estimated number of tokens in the messages.
    pub fn tokens(&self) -> usize {
        let turns = self
            .turns
            .iter()
            .enumerate()
            .map(|(index, turn)| turn.tokens(index + 1));
        let line = if self.gone() == 0 { LINE_TOKENS } else { 0 };
        tokens(&self.rules)
            + tokens(&self.task)
            + line
            + self.hidden().map_or(0, |text| estimate_tokens(&text))
            + turns.sum::<usize>()
    }

    /// The number of turns that are summed up in one line.
    fn gone(&self) -> usize {
        self.turns.iter().take_while(|turn| turn.form == Form::Gone).count()
    }

    /// The first message: the task with its last line, or with the line about turns that are not shown.
    fn opening(&self) -> String {
        match self.hidden() {
            None => format!("{}\n{}", self.task, self.line),
            Some(hidden) => format!("{}{hidden}", self.task),
        }
    }

    /// The line about turns that are not shown.
    fn hidden(&self) -> Option<String> {
        let gone = self.gone();
        let says = "are not shown. Their variables are still there: SHOW_VARS() lists them.";
        (gone > 0).then(|| format!("\n\n[Turns 1 to {gone} {says}]"))
    }
}

fn tokens(text: &str) -> usize {
    estimate_tokens(text) + MESSAGE_TOKENS
}

impl Turn {
    fn tokens(&self, number: usize) -> usize {
        match self.form {
            Form::Gone => 0,
            Form::Whole => tokens(&self.reply) + tokens(&self.feedback) + LINE_TOKENS,
            _ => self.shown(number).iter().map(|text| tokens(text)).sum(),
        }
    }

    fn shown(&self, number: usize) -> [Cow<'_, str>; 2] {
        match self.form {
            Form::Whole => [
                (&*self.reply).into(),
                format!("{}\n\n{}", self.feedback, self.line).into(),
            ],
            Form::Short => [
                middle_cut(&self.reply, SHORT_REPLY_CHARS).into(),
                middle_cut(&self.feedback, SHORT_OUTPUT_CHARS).into(),
            ],
            Form::Line | Form::Gone => [
                format!(
                    "[Turn {number}: a reply of {} characters with {} blocks of code.]",
                    self.reply.chars().count(),
                    self.blocks
                )
                .into(),
                format!(
                    "[Its output of {} characters is not shown.]",
                    self.feedback.chars().count()
                )
                .into(),
            ],
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn history(max_tokens: usize, turns: &[(usize, usize)]) -> (MessageHistory, usize) {
        let mut history = MessageHistory::new("rules".repeat(20), "task".to_owned(), "line".to_owned(), max_tokens);
        let mut compactions = 0;
        for (reply, feedback) in turns {
            history.add("r".repeat(*reply), 1, "f".repeat(*feedback), "line".to_owned());
            compactions += usize::from(history.compact().is_some());
        }
        (history, compactions)
    }

    #[test]
    fn what_fits_is_whole() {
        let (history, compactions) = history(10_000, &[(100, 200), (300, 400)]);
        let messages = history.messages();
        assert_eq!(compactions, 0);
        assert_eq!(messages.len(), 6);
        assert_eq!(messages[1].content, "task\nline");
        assert_eq!(messages[5].content, format!("{}\n\nline", "f".repeat(400)));
    }

    #[test]
    fn older_turns_give_way_and_the_newest_stays_whole() {
        let (history, compactions) = history(4_000, &[(4_000, 4_000); 8]);
        let messages = history.messages();
        assert!(compactions > 0);
        assert_eq!(messages[0].content, "rules".repeat(20));
        assert!(messages[1].content.starts_with("task"));
        assert_eq!(
            messages[messages.len() - 1].content,
            format!("{}\n\nline", "f".repeat(4_000))
        );
        assert_eq!(messages[messages.len() - 2].content, "r".repeat(4_000));
    }

    #[test]
    fn messages_stay_the_same_between_compactions() {
        let mut history = MessageHistory::new("rules".to_owned(), "task".to_owned(), "line".to_owned(), 20_000);
        let (mut changes, mut last) = (0, Vec::new());
        for turn in 0..200 {
            history.add(
                format!("reply {turn} {}", "x".repeat(2_000)),
                1,
                "output ".repeat(300),
                "line".to_owned(),
            );
            history.compact();
            let messages = history.messages();
            changes += usize::from(!messages.starts_with(&last));
            last = messages;
        }
        assert!((1..60).contains(&changes), "{changes}");
    }

    proptest! {
        #[test]
        fn the_limit_holds(
            max_tokens in 500usize..5_000,
            turns in prop::collection::vec((0usize..20_000, 0usize..20_000), 1..12),
        ) {
            let (history, _) = history(max_tokens, &turns);
            prop_assert!(history.tokens() <= max_tokens, "{} > {}", history.tokens(), max_tokens);
            let messages = history.messages();
            prop_assert_eq!(&messages[0].content, &"rules".repeat(20));
            prop_assert!(messages[1].content.starts_with("task"));
            prop_assert!(messages.iter().skip(1).enumerate().all(
                |(index, message)| (message.role == Role::User) == (index % 2 == 0)
            ));
        }
    }
}
