//! Commands that a document shows with their output, in blocks of the language `console`: a line that
//! begins with `$ ` is a command (continued after a backslash), the lines below it are its output.

use super::project::text;

/// A command and the output that the document shows for it.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) command: String,
    pub(crate) output: String,
}

impl Shown {
    /// Fails unless the real output has the shape of the shown one.
    pub(crate) fn check(&self, output: &str) {
        assert_eq!(shape(output), shape(&self.output), "$ {}", self.command);
    }
}

/// All commands with output of a document of this project.
pub(crate) fn shown_by(document: &str) -> Vec<Shown> {
    let text = text(document);
    let blocks = text.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(of_block).collect()
}

fn of_block(block: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    for line in block.replace("\\\n", " ").lines() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => {
                all.push(Shown { command: command.to_owned(), output: String::new() });
            }
            (None, Some(shown)) => shown.output += &format!("{line}\n"),
            (None, None) => panic!("a console block begins with output: {line}"),
        }
    }
    all
}

/// The text with `0` for each number, `0s` for each age and one space for several.
fn shape(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let words: Vec<String> = line.split_whitespace().map(shape_of_word).collect();
        words.join(" ")
    });
    lines.filter(|line| !line.is_empty()).collect()
}

fn shape_of_word(word: &str) -> String {
    let number = word.trim_end_matches(['s', 'm', 'h', 'd']);
    if number.len() < word.len() && number.parse::<u64>().is_ok() {
        return "0s".to_owned();
    }
    let mut shape = String::new();
    for c in word.chars() {
        if !c.is_ascii_digit() {
            shape.push(c);
        } else if !shape.ends_with('0') {
            shape.push('0');
        }
    }
    shape
}
