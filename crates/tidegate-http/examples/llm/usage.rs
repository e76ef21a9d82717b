//! Reads the usage of tokens from the server-sent events of an answer, of OpenAI or Anthropic.

use serde_json::Value;

/// A longer line is no event that reports usage.
const MAX_LINE_BYTES: usize = 64 * 1_024;

/// The tokens of an answer, as far as it has been streamed.
pub(super) struct Usage {
    /// The line that has begun, or `None` if it is too long.
    line: Option<Vec<u8>>,
    input: u64,
    /// As reported.
    output: u64,
    /// The events with text so far: about a token each, for answers that end before their usage is reported.
    texts: u64,
}

impl Usage {
    pub(super) const fn new(estimated_input: u64) -> Self {
        Self { line: Some(Vec::new()), input: estimated_input, output: 0, texts: 0 }
    }

    /// Returns the input and output tokens so far.
    pub(super) fn tokens(&self) -> (u64, u64) {
        (self.input, self.output.max(self.texts))
    }

    /// Reads a chunk, which can begin and end in the middle of an event.
    pub(super) fn read(&mut self, chunk: &[u8]) {
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            if let Some(line) = &mut self.line {
                line.extend_from_slice(part);
            }
            self.line = self.line.take().filter(|line| line.len() <= MAX_LINE_BYTES);
            if part.ends_with(b"\n")
                && let Some(line) = self.line.replace(Vec::new())
            {
                self.read_line(&line);
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        let data = line.strip_prefix(b"data:").and_then(|data| serde_json::from_slice::<Value>(data).ok());
        let Some(data) = data else { return };
        let is_text = data["type"] == "content_block_delta" || !data["choices"][0]["delta"].is_null();
        self.texts += u64::from(is_text);
        // OpenAI: in the last event. Anthropic: in the first event, and the output so far in a later one.
        for usage in [&data["usage"], &data["message"]["usage"]] {
            let number = |names: [&str; 2]| names.iter().find_map(|name| usage[name].as_u64());
            self.input = number(["prompt_tokens", "input_tokens"]).unwrap_or(self.input);
            self.output = number(["completion_tokens", "output_tokens"]).unwrap_or(self.output);
        }
        // The report at the end replaces the count.
        if number_of_output(&data["usage"]).is_some() {
            self.texts = 0;
        }
    }
}

fn number_of_output(usage: &Value) -> Option<u64> {
    usage["completion_tokens"].as_u64().or_else(|| usage["output_tokens"].as_u64())
}
