//! What `cargo xtask test` was asked for.

/// Without anything: every test once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Beside two loops that want all they can get.
    pub(crate) is_busy: bool,
    /// On one processor.
    pub(crate) is_alone: bool,
    /// How often each test runs.
    pub(crate) times: Option<u32>,
    /// Which tests, in the words of nextest.
    pub(crate) filter: Option<String>,
}

impl Options {
    /// Reads the words behind `test`.
    ///
    /// # Errors
    /// A complaint about the first word that is none of ours.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--busy" => options.is_busy = true,
                "--one-core" => options.is_alone = true,
                "--times" => {
                    let times = words.next().and_then(|times| times.parse().ok()).filter(|times| *times > 0);
                    options.times = Some(times.ok_or("--times wants a number from 1")?);
                }
                filter if !filter.starts_with('-') && options.filter.is_none() => {
                    options.filter = Some(filter.to_owned());
                }
                other => return Err(format!("test does not know {other}")),
            }
        }
        Ok(options)
    }

    /// All rings, not some of the tests.
    pub(crate) fn is_whole(&self) -> bool {
        self.times.is_none() && self.filter.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_the_whole() {
        assert!(Options::parse(&[]).unwrap().is_whole());
        assert!(Options::parse(&["--busy", "--one-core"]).unwrap().is_whole());
    }

    #[test]
    fn some_tests_are_run_many_times() {
        let options = Options::parse(&["--busy", "--times", "30", "test(pooler)"]).unwrap();
        let filter = Some("test(pooler)".to_owned());
        assert_eq!(options, Options { is_busy: true, is_alone: false, times: Some(30), filter });
        assert!(!options.is_whole());
    }

    #[test]
    fn a_word_that_is_none_is_refused() {
        for words in [&["--time", "3"][..], &["--times"], &["--times", "0"], &["--times", "x"], &["a", "b"]] {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
