//! Truncates output. A buffer keeps the beginning and the end of printed text, in bounded memory.

/// The notice that stands for `omitted` characters that are not shown.
pub fn omission_notice(omitted: u64) -> String {
    format!("\n... [{omitted} characters omitted] ...\n")
}

/// The text of one output stream. Up to `limit` characters are kept whole; longer text keeps its first and last `limit / 2`.
///
/// Lengths are in characters (Unicode code points). Memory stays below a few times `limit`, whatever is pushed.
#[derive(Debug, Clone)]
pub struct OutputBuffer {
    head: String,
    head_room: usize,
    tail: String,
    tail_chars: usize,
    tail_limit: usize,
    total: u64,
}

impl OutputBuffer {
    /// An empty buffer that keeps `limit` characters.
    pub fn new(limit: u32) -> Self {
        let limit = limit as usize;
        let tail_limit = limit / 2;
        Self {
            head: String::new(),
            head_room: limit - tail_limit,
            tail: String::new(),
            tail_chars: 0,
            tail_limit,
            total: 0,
        }
    }

    /// Appends `text`. The guest left out `skipped` characters before it.
    ///
    /// The guest may skip only characters that belong neither to the head nor to the tail. So a gap closes the head and empties the tail.
    pub fn push(&mut self, skipped: u64, text: &str) {
        if skipped > 0 {
            self.total = self.total.saturating_add(skipped);
            self.head_room = 0;
            self.tail.clear();
            self.tail_chars = 0;
        }
        let chars = text.chars().count();
        self.total = self.total.saturating_add(chars as u64);
        let (head, rest) = text.split_at(byte_index(text, self.head_room));
        self.head.push_str(head);
        let to_head = self.head_room.min(chars);
        self.head_room -= to_head;
        self.push_tail(rest, chars - to_head);
    }

    /// The text to show, with a notice in place of omitted characters.
    pub fn text(&self) -> String {
        let omitted = self.omitted();
        let tail = &self.tail[byte_index(&self.tail, self.tail_chars.saturating_sub(self.tail_limit))..];
        if omitted == 0 {
            return format!("{}{tail}", self.head);
        }
        format!("{}{}{tail}", self.head, omission_notice(omitted))
    }

    /// The number of characters that [`OutputBuffer::text`] leaves out.
    pub fn omitted(&self) -> u64 {
        let kept = self.head.chars().count() + self.tail_chars.min(self.tail_limit);
        self.total - kept as u64
    }

    /// Returns true if nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    fn push_tail(&mut self, text: &str, chars: usize) {
        let surplus = chars.saturating_sub(self.tail_limit);
        if surplus > 0 {
            // The new text alone fills the tail.
            self.tail.clear();
            self.tail.push_str(&text[byte_index(text, surplus)..]);
            self.tail_chars = self.tail_limit;
            return;
        }
        self.tail.push_str(text);
        self.tail_chars += chars;
        // Cuts only at twice the limit, so that the cost of a push stays proportional to its length.
        if self.tail_chars > 2 * self.tail_limit {
            let cut = byte_index(&self.tail, self.tail_chars - self.tail_limit);
            self.tail.drain(..cut);
            self.tail_chars = self.tail_limit;
        }
    }
}

/// The byte index of the character number `chars`, or the text's length if it has fewer characters.
fn byte_index(text: &str, chars: usize) -> usize {
    if chars >= text.len() {
        return text.len();
    }
    text.char_indices().nth(chars).map_or(text.len(), |(index, _)| index)
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(limit: u32, pieces: &[&str]) -> OutputBuffer {
        let mut buffer = OutputBuffer::new(limit);
        pieces.iter().for_each(|piece| buffer.push(0, piece));
        buffer
    }

    #[test]
    fn output_within_the_limit_is_whole() {
        assert_eq!(filled(5, &["ab", "", "cdé"]).text(), "abcdé");
        assert_eq!(filled(0, &[]).text(), "");
    }

    #[test]
    fn longer_output_keeps_head_and_tail_around_a_notice() {
        assert_eq!(
            filled(4, &["abcdef", "ghij"]).text(),
            "ab\n... [6 characters omitted] ...\nij"
        );
        assert_eq!(
            filled(5, &["abcdefghij"]).text(),
            "abc\n... [5 characters omitted] ...\nij"
        );
        assert_eq!(filled(0, &["abc"]).text(), "\n... [3 characters omitted] ...\n");
    }

    #[test]
    fn characters_the_guest_left_out_are_counted() {
        let mut buffer = filled(4, &["abcd"]);
        buffer.push(1_000, "wxyz");
        assert_eq!(buffer.text(), "ab\n... [1004 characters omitted] ...\nyz");
        assert_eq!(buffer.omitted(), 1_004);
    }

    #[test]
    fn a_gap_that_lies_about_its_size_cannot_overflow() {
        let mut buffer = filled(4, &["abcd"]);
        buffer.push(u64::MAX, "x");
        buffer.push(u64::MAX, "y");
        assert_eq!(buffer.omitted(), u64::MAX - 3);
    }

    proptest! {
        #[test]
        fn any_pieces_give_what_the_whole_text_gives(
            limit in 0_u32..40,
            pieces in prop::collection::vec("[a-z€😀]{0,30}", 0..20),
        ) {
            let whole: Vec<char> = pieces.concat().chars().collect();
            let mut buffer = OutputBuffer::new(limit);
            for piece in &pieces {
                buffer.push(0, piece);
                prop_assert!(buffer.tail.chars().count() <= 2 * buffer.tail_limit);
            }
            let limit = limit as usize;
            let expected = if whole.len() <= limit {
                whole.iter().collect::<String>()
            } else {
                let (head, tail) = (limit - limit / 2, limit / 2);
                let start: String = whole[..head].iter().collect();
                let end: String = whole[whole.len() - tail..].iter().collect();
                format!("{start}{}{end}", omission_notice((whole.len() - limit) as u64))
            };
            prop_assert_eq!(buffer.text(), expected);
        }
    }
}
