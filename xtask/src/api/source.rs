//! `Source`: the modules of a crate, read from its files, with its own small macros written out.

use std::collections::BTreeMap;

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::{File, Item, ItemImpl, ItemMacro, Type};

/// All modules of a crate by their path from the root; those of tests are not here.
pub(super) struct Source {
    modules: BTreeMap<Vec<String>, Vec<Item>>,
}

impl Source {
    /// Reads the crate in this folder.
    pub(super) fn load(texts: &BTreeMap<String, String>, folder: &str) -> Result<Self, String> {
        let mut modules = BTreeMap::new();
        let root = format!("{folder}/src/lib.rs");
        add(texts, &root, &format!("{folder}/src"), Vec::new(), &mut modules)?;
        let macros = modules.values().flatten().filter_map(definition).collect();
        for items in modules.values_mut() {
            *items = items.drain(..).flat_map(|item| written_out(item, &macros)).collect();
        }
        Ok(Self { modules })
    }

    pub(super) fn has(&self, module: &[String]) -> bool {
        self.modules.contains_key(module)
    }

    pub(super) fn items(&self, module: &[String]) -> &[Item] {
        self.modules.get(module).map_or(&[], Vec::as_slice)
    }

    /// Every `impl` for the type of this name that is defined in this module: there, and where no other one has its name.
    pub(super) fn impls<'a>(
        &'a self,
        module: &'a [String],
        name: &'a str,
    ) -> impl Iterator<Item = &'a ItemImpl> {
        let sees_it = move |(at, items): &(&Vec<String>, &Vec<Item>)| {
            at.as_slice() == module || !items.iter().any(|item| defines(item, name))
        };
        self.modules.iter().filter(sees_it).flat_map(|(_, items)| items).filter_map(move |item| match item {
            Item::Impl(block) if names(&block.self_ty, name) => Some(block),
            _ => None,
        })
    }
}

fn defines(item: &Item, name: &str) -> bool {
    match item {
        Item::Struct(it) => it.ident == name,
        Item::Enum(it) => it.ident == name,
        Item::Trait(it) => it.ident == name,
        _ => false,
    }
}

fn names(ty: &Type, name: &str) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == name),
        Type::Reference(reference) => names(&reference.elem, name),
        _ => false,
    }
}

fn add(
    texts: &BTreeMap<String, String>,
    file: &str,
    folder: &str,
    module: Vec<String>,
    modules: &mut BTreeMap<Vec<String>, Vec<Item>>,
) -> Result<(), String> {
    let text = texts.get(file).ok_or_else(|| format!("there is no {file}"))?;
    let parsed: File = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
    walk(texts, folder, module, parsed.items, modules)
}

fn walk(
    texts: &BTreeMap<String, String>,
    folder: &str,
    module: Vec<String>,
    items: Vec<Item>,
    modules: &mut BTreeMap<Vec<String>, Vec<Item>>,
) -> Result<(), String> {
    for item in &items {
        let Item::Mod(inner) = item else { continue };
        if is_of_tests(&inner.attrs) {
            continue;
        }
        let name = inner.ident.to_string();
        let (path, below) = (child(&module, &name), format!("{folder}/{name}"));
        match &inner.content {
            Some((_, items)) => walk(texts, &below, path, items.clone(), modules)?,
            None => {
                let files = [format!("{below}.rs"), format!("{below}/mod.rs")];
                let file = files.iter().find(|file| texts.contains_key(*file));
                let file = file.ok_or_else(|| format!("there is no file of the module {name}"))?;
                add(texts, file, &below, path, modules)?;
            }
        }
    }
    modules.insert(module, items);
    Ok(())
}

fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    let says = |attribute: &syn::Attribute| {
        let text = quote::quote!(#attribute).to_string();
        // Not the feature `testing`, which users choose.
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        attribute.path().is_ident("cfg")
            && !text.contains("not")
            && words.any(|word| matches!(word, "test" | "doctest"))
    };
    attributes.iter().any(says)
}

/// A macro's name, that of its one parameter, and its text.
type Definition = (String, (String, TokenStream));

/// A macro of one rule that takes one name: all that a crate of ours may make public items with.
fn definition(item: &Item) -> Option<Definition> {
    let Item::Macro(ItemMacro { ident: Some(name), mac, .. }) = item else { return None };
    let tokens: Vec<TokenTree> = mac.tokens.clone().into_iter().collect();
    let [TokenTree::Group(matcher), TokenTree::Punct(_), TokenTree::Punct(_), TokenTree::Group(body), ..] =
        &tokens[..]
    else {
        return None;
    };
    let matcher: Vec<TokenTree> = matcher.stream().into_iter().collect();
    let [TokenTree::Punct(_), TokenTree::Ident(parameter), TokenTree::Punct(_), TokenTree::Ident(kind)] =
        &matcher[..]
    else {
        return None;
    };
    (kind == "ident").then(|| (name.to_string(), (parameter.to_string(), body.stream())))
}

fn written_out(item: Item, macros: &BTreeMap<String, (String, TokenStream)>) -> Vec<Item> {
    let Item::Macro(ItemMacro { ident: None, mac, .. }) = &item else { return vec![item] };
    let known = mac.path.segments.last().and_then(|last| macros.get(&last.ident.to_string()));
    let Some((parameter, body)) = known else { return vec![item] };
    let text = replaced(body.clone(), parameter, &mac.tokens);
    syn::parse2::<File>(text).map_or_else(|_| vec![item], |file| file.items)
}

/// The text of a macro with what stands for its parameter.
fn replaced(text: TokenStream, parameter: &str, by: &TokenStream) -> TokenStream {
    let mut out = TokenStream::new();
    let mut tokens = text.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(dollar) if dollar.as_char() == '$' => {
                let is_it =
                    tokens.next_if(|next| matches!(next, TokenTree::Ident(name) if name == parameter));
                match is_it {
                    Some(_) => out.extend(by.clone()),
                    None => out.extend([TokenTree::Punct(dollar)]),
                }
            }
            TokenTree::Group(group) => {
                let inner = replaced(group.stream(), parameter, by);
                out.extend([TokenTree::Group(Group::new(group.delimiter(), inner))]);
            }
            other => out.extend([other]),
        }
    }
    out
}

/// The path of a module inside another one.
pub(super) fn child(module: &[String], name: &str) -> Vec<String> {
    module.iter().cloned().chain([name.to_owned()]).collect()
}
