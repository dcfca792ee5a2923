//! Docs of the API: what cancelling and dropping do is said where the item stands.

use crate::tidy::house::{House, Violation};

/// Every public function of the API that is async or answers a future has `# Cancel safety`, every guard `# Dropping`.
pub(crate) fn of_api(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &house.rust {
        let Some(("tenure", inside)) = file.in_crate_source() else { continue };
        let (mut docs, mut signature) = (String::new(), String::new());
        for line in file.shipped_lines() {
            let text = line.text.trim_start();
            if text.starts_with("///") {
                docs.push_str(text);
            } else if !text.starts_with("#[") {
                signature.push_str(text);
                // Its parameters may stand on lines of their own.
                if signature.starts_with("pub fn ") && !text.ends_with(['{', ';', '}']) {
                    continue;
                }
                if let Some(heading) = missing(&signature, inside, &docs) {
                    let what = format!("the docs of this have no `{heading}`");
                    violations.push(Violation::new(&file.path, line.number, &what));
                }
                docs.clear();
                signature.clear();
            }
        }
    }
    violations
}

fn missing(code: &str, file: &str, docs: &str) -> Option<&'static str> {
    let is_async =
        code.starts_with("pub async fn ") || code.starts_with("pub fn ") && code.contains("-> impl Future<");
    let heading = if is_async {
        "# Cancel safety"
    } else if file == "guard.rs" && code.starts_with("pub struct ") {
        "# Dropping"
    } else {
        return None;
    };
    (!docs.contains(heading)).then_some(heading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn an_async_function_without_cancel_safety_is_found() {
        let bad = "//! x\n/// Waits.\n#[must_use]\npub async fn a() {}\n";
        let good =
            "//! x\n/// Waits.\n///\n/// # Cancel safety\n/// Safe.\n#[must_use]\npub async fn a() {}\n";
        assert_eq!(judge(of_api, &[("crates/tenure/src/lock.rs", bad)]).len(), 1);
        assert!(judge(of_api, &[("crates/tenure/src/lock.rs", good)]).is_empty());
        assert!(judge(of_api, &[("crates/tenure-core/src/lock.rs", bad)]).is_empty(), "the API only");
    }

    #[test]
    fn a_function_that_answers_a_future_needs_cancel_safety_too() {
        let text = "//! x\n/// Waits.\npub fn a(\n    &self,\n) -> impl Future<Output = ()> {\n}\n/// Does not.\npub fn b() {}\n";
        assert_eq!(judge(of_api, &[("crates/tenure/src/lock.rs", text)]).len(), 1);
    }

    #[test]
    fn docs_of_one_item_do_not_serve_the_next() {
        let text = "//! x\n/// # Cancel safety\npub async fn a() {}\n/// Waits.\npub async fn b() {}\n";
        assert_eq!(judge(of_api, &[("crates/tenure/src/lock.rs", text)]).len(), 1);
    }

    #[test]
    fn a_guard_without_dropping_is_found() {
        let text = "//! x\n/// Proof.\npub struct Guard;\n";
        assert_eq!(judge(of_api, &[("crates/tenure/src/guard.rs", text)]).len(), 1);
    }
}
