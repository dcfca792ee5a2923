//! Skeletons: an item as its users see it, without documentation, bodies and private parts.

use syn::{Attribute, Block, Fields, ImplItem, Item, ItemImpl, TraitItem, Visibility, parse_quote};

/// Attributes that are part of the API.
const SHOWN: &[&str] =
    &["cfg", "cfg_attr", "derive", "must_use", "non_exhaustive", "async_trait", "deprecated"];

pub(super) fn attributes(all: &[Attribute]) -> Vec<Attribute> {
    let is_shown = |attribute: &&Attribute| SHOWN.iter().any(|shown| attribute.path().is_ident(shown));
    let mut shown: Vec<Attribute> = all.iter().filter(is_shown).cloned().collect();
    for attribute in &mut shown {
        // Why it must be used is text.
        if attribute.path().is_ident("must_use") {
            *attribute = parse_quote!(#[must_use]);
        }
    }
    shown
}

/// A public item with its name; nothing if it is not public, or none that has a name.
pub(super) fn of(item: &Item) -> Option<(String, Item)> {
    let mut item = item.clone();
    let (visibility, attrs, name) = match &mut item {
        Item::Struct(it) => {
            hide_private(&mut it.fields);
            (&it.vis, &mut it.attrs, it.ident.to_string())
        }
        Item::Enum(it) => {
            for variant in &mut it.variants {
                variant.attrs = attributes(&variant.attrs);
                variant.fields.iter_mut().for_each(|field| field.attrs = attributes(&field.attrs));
            }
            (&it.vis, &mut it.attrs, it.ident.to_string())
        }
        Item::Trait(it) => {
            it.items.iter_mut().for_each(strip_of_trait);
            (&it.vis, &mut it.attrs, it.ident.to_string())
        }
        Item::Fn(it) => {
            *it.block = empty();
            (&it.vis, &mut it.attrs, it.sig.ident.to_string())
        }
        Item::Const(it) => (&it.vis, &mut it.attrs, it.ident.to_string()),
        Item::Static(it) => (&it.vis, &mut it.attrs, it.ident.to_string()),
        Item::Type(it) => (&it.vis, &mut it.attrs, it.ident.to_string()),
        _ => return None,
    };
    let is_public = matches!(visibility, Visibility::Public(_));
    *attrs = attributes(attrs);
    is_public.then_some((name, item))
}

/// The item under the conditions of its re-export.
pub(super) fn under(mut item: Item, conditions: &[Attribute]) -> Item {
    if let Item::Struct(syn::ItemStruct { attrs, .. })
    | Item::Enum(syn::ItemEnum { attrs, .. })
    | Item::Trait(syn::ItemTrait { attrs, .. })
    | Item::Fn(syn::ItemFn { attrs, .. })
    | Item::Const(syn::ItemConst { attrs, .. })
    | Item::Type(syn::ItemType { attrs, .. }) = &mut item
    {
        attrs.splice(0..0, conditions.iter().cloned());
    }
    item
}

/// The public part of an `impl`; nothing if there is none.
pub(super) fn of_impl(block: &ItemImpl) -> Option<Item> {
    let mut block = block.clone();
    let is_of_trait = block.trait_.is_some();
    block.attrs = attributes(&block.attrs);
    block.items.retain_mut(|item| match item {
        ImplItem::Type(it) => {
            it.attrs = attributes(&it.attrs);
            is_of_trait
        }
        ImplItem::Fn(it) => {
            it.attrs = attributes(&it.attrs);
            it.block = empty();
            !is_of_trait && matches!(it.vis, Visibility::Public(_))
        }
        ImplItem::Const(it) => {
            it.attrs = attributes(&it.attrs);
            is_of_trait || matches!(it.vis, Visibility::Public(_))
        }
        _ => false,
    });
    (is_of_trait || !block.items.is_empty()).then_some(Item::Impl(block))
}

fn strip_of_trait(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(it) => {
            it.attrs = attributes(&it.attrs);
            it.default.iter_mut().for_each(|body| *body = empty());
        }
        TraitItem::Type(it) => it.attrs = attributes(&it.attrs),
        TraitItem::Const(it) => it.attrs = attributes(&it.attrs),
        _ => {}
    }
}

/// Private fields are shown as that there are some: with them nobody else makes such a value.
fn hide_private(fields: &mut Fields) {
    let is_public = |field: &syn::Field| matches!(field.vis, Visibility::Public(_));
    match fields {
        Fields::Named(named) => {
            let all = named.named.len();
            let public = named.named.iter().filter(|field| is_public(field)).cloned();
            named.named = public.collect();
            if named.named.len() < all {
                let private: syn::FieldsNamed = parse_quote!({ _private: _ });
                named.named.extend(private.named);
            }
        }
        Fields::Unnamed(unnamed) => {
            for field in unnamed.unnamed.iter_mut().filter(|field| !is_public(field)) {
                field.ty = parse_quote!(_);
                field.vis = Visibility::Inherited;
            }
        }
        Fields::Unit => {}
    }
    fields.iter_mut().for_each(|field| field.attrs = attributes(&field.attrs));
}

fn empty() -> Block {
    parse_quote!({})
}
