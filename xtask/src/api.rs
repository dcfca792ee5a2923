//! `cargo xtask api`: what each published library shows to its users, in one text per crate that is kept in the tree.
//!
//! Read from the sources, so that it needs neither a compiler of some day nor the network. Whoever changes the API changes
//! the text, and a reviewer sees it.

mod skeleton;
mod source;

use std::{collections::BTreeMap, fs};

use syn::{File, Item, ItemMod, UseTree, Visibility, parse_quote};

use crate::{
    api::source::Source,
    step::Failure,
    tree,
    workspace::{Package, Workspace},
};

const HEADER: &str = "// What users of this crate see; written by `cargo xtask api`.\n\n";

/// The crates that have a listing, by the folder of their manifest.
pub(crate) fn listed<'a>(
    workspace: &'a Workspace,
    texts: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = (&'a Package, &'a str)> {
    workspace.packages.iter().filter_map(|package| {
        let folder = package.manifest.strip_suffix("/Cargo.toml")?;
        let is_library = texts.contains_key(&format!("{folder}/src/lib.rs"));
        (package.is_published && is_library).then_some((package, folder))
    })
}

/// Where the listing of a crate is.
pub(crate) fn path(folder: &str) -> String {
    format!("{folder}/api.txt")
}

/// Writes the listing of every published library.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let texts = tree::texts(&workspace.root)?;
    for (package, folder) in listed(workspace, &texts) {
        let failed = |why: String| Failure::new("api", format!("{}: {why}", package.name));
        let listing = listing(&texts, folder).map_err(failed)?;
        fs::write(workspace.root.join(path(folder)), listing).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// What users of the crate in this folder see.
///
/// # Errors
/// Says which file is no Rust, or missing.
pub(crate) fn listing(texts: &BTreeMap<String, String>, folder: &str) -> Result<String, String> {
    let source = Source::load(texts, folder)?;
    let items = visible(&source, &[]);
    let file = File { shebang: None, attrs: Vec::new(), items };
    Ok(format!("{HEADER}{}", prettyplease::unparse(&file)))
}

/// What is public in a module, by name.
fn visible(source: &Source, module: &[String]) -> Vec<Item> {
    let mut named: Vec<(String, Vec<Item>)> = Vec::new();
    for item in source.items(module) {
        match item {
            Item::Use(import) if is_public(&import.vis) => {
                for (path, name) in leaves(&import.tree) {
                    let attributes = skeleton::attributes(&import.attrs);
                    named.push((name.clone(), resolved(source, module, &path, &name, &attributes)));
                }
            }
            Item::Mod(inner) if is_public(&inner.vis) => {
                let path = source::child(module, &inner.ident.to_string());
                let content = Some((syn::token::Brace::default(), visible(source, &path)));
                let attrs = skeleton::attributes(&inner.attrs);
                let shown = ItemMod { content, semi: None, attrs, ..inner.clone() };
                named.push((inner.ident.to_string(), vec![Item::Mod(shown)]));
            }
            item => {
                if let Some((name, shown)) = skeleton::of(item) {
                    named.push((name.clone(), with_impls(source, module, &name, shown)));
                }
            }
        }
    }
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    named.into_iter().flat_map(|(_, items)| items).collect()
}

/// What a re-export shows: the item itself if it is of this crate, with the conditions of the re-export.
fn resolved(
    source: &Source,
    module: &[String],
    path: &[String],
    name: &str,
    conditions: &[syn::Attribute],
) -> Vec<Item> {
    let foreign = || {
        let (path, name) = (path.join("::"), quote::format_ident!("{name}"));
        let path: syn::Path = syn::parse_str(&path).expect("BUG: it was a path in the source");
        let alias = path.segments.last().is_some_and(|last| last.ident != name);
        vec![if alias { parse_quote!(pub use #path as #name;) } else { parse_quote!(pub use #path;) }]
    };
    let (last, parents) = path.split_last().expect("BUG: a re-export has a name");
    let inner: Vec<String> = module.iter().chain(parents).cloned().collect();
    if parents.is_empty() || !source.has(&inner) {
        return foreign();
    }
    let mut shown = Vec::new();
    for item in source.items(&inner) {
        match item {
            Item::Use(import) => {
                for (path, alias) in leaves(&import.tree).into_iter().filter(|(_, alias)| alias == last) {
                    shown.extend(resolved(source, &inner, &path, &alias, conditions));
                }
            }
            item => {
                if let Some((_, item)) = skeleton::of(item).filter(|(name, _)| name == last) {
                    let item = skeleton::under(item, conditions);
                    shown.extend(with_impls(source, &inner, last, item));
                }
            }
        }
    }
    if shown.is_empty() { foreign() } else { shown }
}

fn with_impls(source: &Source, module: &[String], name: &str, item: Item) -> Vec<Item> {
    let mut impls: Vec<Item> = source.impls(module, name).filter_map(skeleton::of_impl).collect();
    impls.sort_by_key(|item| quote::quote!(#item).to_string());
    [vec![item], impls].concat()
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Each name that an import brings, with its path.
fn leaves(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        UseTree::Path(path) => {
            let head = path.ident.to_string();
            let below = leaves(&path.tree).into_iter();
            below.map(|(path, name)| ([vec![head.clone()], path].concat(), name)).collect()
        }
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(rename) => vec![(vec![rename.ident.to_string()], rename.rename.to_string())],
        UseTree::Glob(_) => Vec::new(),
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed_of(files: &[(&str, &str)]) -> String {
        let texts = files.iter().map(|(path, text)| (format!("c/{path}"), (*text).to_owned())).collect();
        let listing = listing(&texts, "c").unwrap();
        listing.strip_prefix(HEADER).unwrap().to_owned()
    }

    #[test]
    fn what_is_public_is_listed_without_its_insides() {
        let lib = "mod a; pub mod b; pub use a::{Thing, deep::Hidden as Shown}; pub use other_crate::Foreign; mod secret; #[cfg(feature = \"testing\")] pub mod testing { pub fn chosen() {} }";
        let thing = r#"
            mod macros { macro_rules! speaks { ($it:ident) => { impl $it { pub fn speak(&self) { loop {} } } }; } }
            pub mod deep { pub fn unused() {} }
            /// Docs.
            #[derive(Clone)] #[non_exhaustive] #[doc(hidden)]
            pub struct Thing { pub seen: u8, unseen: u16 }
            impl Thing { pub fn new() -> Self { loop {} } fn inner(&self) {} }
            impl Drop for Thing { fn drop(&mut self) { let x = 1; } }
            macros::speaks!(Thing);
            #[cfg(test)] mod tests { impl Thing { pub fn of_tests() {} } }
        "#;
        let b = "pub struct Thing; impl Thing { pub fn another(&self) {} } pub trait T { type A; fn must(&self) -> u8; fn may(&self) -> u8 { 7 } } pub(crate) fn hidden() {}";
        let shown = listed_of(&[
            ("src/lib.rs", lib),
            ("src/a.rs", thing),
            ("src/b.rs", b),
            ("src/secret.rs", "pub fn nobody() {}"),
        ]);
        let expected = "\
pub use other_crate::Foreign;
pub use a::deep::Hidden as Shown;
#[derive(Clone)]
#[non_exhaustive]
pub struct Thing {
    pub seen: u8,
    _private: _,
}
impl Drop for Thing {}
impl Thing {
    pub fn new() -> Self {}
}
impl Thing {
    pub fn speak(&self) {}
}
pub mod b {
    pub trait T {
        type A;
        fn must(&self) -> u8;
        fn may(&self) -> u8 {}
    }
    pub struct Thing;
    impl Thing {
        pub fn another(&self) {}
    }
}
#[cfg(feature = \"testing\")]
pub mod testing {
    pub fn chosen() {}
}
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let texts: BTreeMap<String, String> = [("c/src/lib.rs".into(), "mod a;".into())].into();
        assert_eq!(listing(&texts, "c").unwrap_err(), "there is no file of the module a");
        let texts: BTreeMap<String, String> = [("c/src/lib.rs".into(), "fn {".into())].into();
        assert!(listing(&texts, "c").unwrap_err().starts_with("c/src/lib.rs: "));
    }
}
