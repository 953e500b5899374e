//! Inputs out of words: bytes at random are hardly ever well-formed to their second character.

/// What an input stands for. One that begins with ASCII stands for itself, as those of the corpora do. Any other is a
/// recipe: each byte is the number of a word, or says that the byte after it is taken as it is.
pub(crate) fn spell(input: &[u8], words: &[&str]) -> Vec<u8> {
    let Some((first, recipe)) = input.split_first() else { return Vec::new() };
    if first.is_ascii() {
        return input.to_vec();
    }
    let mut spelled = Vec::new();
    let mut recipe = recipe.iter();
    while let Some(byte) = recipe.next() {
        if *byte > 0xf0 {
            spelled.extend(recipe.next());
        } else {
            spelled.extend_from_slice(words[usize::from(*byte) % words.len()].as_bytes());
        }
    }
    spelled
}

/// A text for people has no characters that a terminal or a log would obey, and an end.
pub(crate) fn assert_is_fit_to_print(text: &str, longest: usize) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(text.chars().count() <= longest, "{} characters: {text:?}", text.len());
}
