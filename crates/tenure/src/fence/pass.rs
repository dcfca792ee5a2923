//! `Pass`: the token that a holder shows to a resource, and the rule that judges it.

use std::{env, ffi::OsString};

use tenure_core::{FencingToken, Mode};

use crate::{guard::Guard, lease::Lease};

/// What a holder shows to a resource: its token, and whether it raises the resource's mark.
///
/// Made by [`Lease::pass`], or from a token that came another way. An exclusive holder's pass **raises** the mark;
/// a shared one is only **checked** against it.
///
/// ```
/// use tenure::{FencingToken, fence::Pass};
///
/// let (former, later) = (Pass::exclusive(FencingToken::new(7)), Pass::exclusive(FencingToken::new(8)));
/// let mark = former.judge(0)?;
/// let mark = later.judge(mark)?;
/// assert_eq!(former.judge(mark).unwrap_err().mark, 8);
/// # Ok::<(), tenure::fence::Refused>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    token: FencingToken,
    raises: bool,
}

impl Pass {
    /// For a holder that holds the lock in this mode.
    pub const fn new(token: FencingToken, mode: Mode) -> Self {
        Self { token, raises: matches!(mode, Mode::Exclusive) }
    }

    /// For the holder of a mutex, or a writer.
    pub const fn exclusive(token: FencingToken) -> Self {
        Self { token, raises: true }
    }

    /// For a reader, or the holder of a permit.
    pub const fn shared(token: FencingToken) -> Self {
        Self { token, raises: false }
    }

    /// For a child of `tenure run`, which finds the token in `TENURE_TOKEN`. Pass the mode of the command: shared
    /// with `-s` and `--slots`, exclusive otherwise.
    ///
    /// # Errors
    /// [`NoToken`] if the variable is missing or not a number.
    pub fn from_env(mode: Mode) -> Result<Self, NoToken> {
        Ok(Self::new(token_of(env::var_os(VARIABLE))?, mode))
    }

    /// The token of the grant.
    pub const fn token(self) -> FencingToken {
        self.token
    }

    /// Whether the mark rises to the token. True for exclusive holders only.
    pub const fn raises(self) -> bool {
        self.raises
    }

    /// The rule: returns the new mark of a resource with this mark after this pass.
    ///
    /// Your own resource calls it in the same atomic step as the write, and stores the returned mark durably, no
    /// later than the write. A resource without a write so far has the mark 0.
    ///
    /// # Errors
    /// [`Refused`] if the mark is above the token: nothing may be written.
    pub const fn judge(self, mark: u64) -> Result<u64, Refused> {
        let token = self.token;
        if token.get() < mark {
            return Err(Refused { token, mark });
        }
        Ok(if self.raises { token.get() } else { mark })
    }
}

impl From<&Lease> for Pass {
    fn from(lease: &Lease) -> Self {
        lease.pass()
    }
}

impl From<&Guard> for Pass {
    fn from(guard: &Guard) -> Self {
        guard.pass()
    }
}

/// A later holder has shown its token to the resource: the lease with this token has ended. Do not try again with
/// the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is refused: a later holder with token {mark} has been here")]
#[non_exhaustive]
pub struct Refused {
    /// The token that was shown.
    pub token: FencingToken,
    /// The mark of the resource.
    pub mark: u64,
}

/// The environment has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoToken {
    /// The variable is missing.
    #[error("{VARIABLE} is not set; start this program with `tenure run`")]
    Missing,
    /// The variable is not a number.
    #[error("{VARIABLE} is not a whole number; start this program with `tenure run`")]
    Malformed,
}

fn token_of(value: Option<OsString>) -> Result<FencingToken, NoToken> {
    let text = value.ok_or(NoToken::Missing)?;
    let number = text.to_str().and_then(decimal).ok_or(NoToken::Malformed)?;
    Ok(FencingToken::new(number))
}

/// A number as Tenure writes it: digits only, without sign or blank.
pub(super) fn decimal(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// The variable that `tenure run` sets to the token.
const VARIABLE: &str = "TENURE_TOKEN";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A holder of one lock and its action at the resource.
    #[derive(Clone, Debug)]
    struct Visit {
        token: u64,
        is_exclusive: bool,
    }

    fn visits() -> impl Strategy<Value = Vec<Visit>> {
        // Few tokens, so that they meet; around 2^53 and at the ends, where other number types round.
        let token = prop_oneof![0..6_u64, (1 << 53) - 2..(1 << 53) + 3_u64, u64::MAX - 2..=u64::MAX];
        let visit = (token, any::<bool>()).prop_map(|(token, is_exclusive)| Visit { token, is_exclusive });
        prop::collection::vec(visit, 0..40)
    }

    proptest! {
        /// L3, hazard 50: the resource accepts an exclusive holder exactly if no later exclusive one was there;
        /// shared holders exclude no holder.
        #[test]
        fn a_visit_is_refused_exactly_if_a_later_exclusive_holder_was_there(visits in visits()) {
            let mut mark = 0;
            let mut largest = 0;
            for Visit { token, is_exclusive } in visits {
                let token_shown = FencingToken::new(token);
                let mode = if is_exclusive { Mode::Exclusive } else { Mode::READ };
                match Pass::new(token_shown, mode).judge(mark) {
                    Ok(next) => {
                        prop_assert!(token >= largest);
                        prop_assert_eq!(next, if is_exclusive { token } else { mark });
                        mark = next;
                        largest = if is_exclusive { token } else { largest };
                    }
                    Err(refused) => {
                        prop_assert!(token < largest);
                        prop_assert_eq!(refused, Refused { token: token_shown, mark });
                    }
                }
            }
        }
    }

    /// Hazard 50: if every grant raised the mark, the first permit would be refused for being first.
    #[test]
    fn two_permits_write_in_any_order() {
        let (first, second) = (Pass::shared(FencingToken::new(4)), Pass::shared(FencingToken::new(5)));
        let mark = Pass::exclusive(FencingToken::new(3)).judge(0).unwrap();
        let mark = second.judge(mark).unwrap();
        assert_eq!(first.judge(mark), Ok(3));
        let naive = Pass::exclusive(FencingToken::new(5)).judge(mark).unwrap();
        assert!(first.judge(naive).is_err());
    }

    #[test]
    fn a_child_finds_its_token_or_an_error_that_says_what_to_do() {
        let found = |text: &str| token_of(Some(text.into()));
        assert_eq!(found("1763755200000001").unwrap().get(), 1_763_755_200_000_001);
        assert_eq!(found(&u64::MAX.to_string()).unwrap().get(), u64::MAX);
        for text in ["", " 1", "+1", "-1", "1.0", "0x1", "18446744073709551616", "1\n"] {
            assert_eq!(found(text), Err(NoToken::Malformed), "{text:?}");
        }
        assert_eq!(token_of(None), Err(NoToken::Missing));
        assert!(NoToken::Missing.to_string().starts_with("TENURE_TOKEN is not set"));
    }
}
