//! The public interface of the library, compared with `tests/golden/api.txt`.
//!
//! The list is read from the sources: every name that `host/lib.rs` and its public modules export,
//! with signatures, public fields, variants, and traits. Items that macros make are not seen; a
//! macro among the methods of a public type is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

/// A path of names below the crate's root.
type Names = Vec<String>;

/// The modules of the crate, without those of tests.
struct Crate(BTreeMap<Names, Vec<Item>>);

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// An item of a module of this crate.
    Item(Names, String),
    Module(Names),
    /// An item of another crate.
    Foreign(Names),
}

/// A name that a module imports: its path, the name, and whether other crates see it.
struct Import<'a> {
    path: Names,
    name: String,
    is_public: bool,
    attributes: &'a [Attribute],
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut modules = Self(BTreeMap::new());
        modules.load(&root.join("lib.rs"), root, Vec::new());
        modules
    }

    fn load(&mut self, file: &Path, folder: &Path, names: Names) {
        let source = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&source).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.add(parsed.items, folder, names);
    }

    fn add(&mut self, items: Vec<Item>, folder: &Path, names: Names) {
        let items: Vec<Item> = items.into_iter().filter(|item| !is_test(attributes(item))).collect();
        for item in &items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            let (inside, file) = (folder.join(&name), folder.join(format!("{name}.rs")));
            let names = [&names[..], &[name]].concat();
            match &module.content {
                Some((_, items)) => self.add(items.clone(), &inside, names),
                None if file.is_file() => self.load(&file, &inside, names),
                None => self.load(&inside.join("mod.rs"), &inside, names),
            }
        }
        self.0.insert(names, items);
    }

    /// The names that a module imports, and the modules that it imports all names of.
    fn imports(&self, module: &[String]) -> (Vec<Import<'_>>, Vec<Names>) {
        let (mut imports, mut globs) = (Vec::new(), Vec::new());
        for item in &self.0[module] {
            let Item::Use(import) = item else { continue };
            let is_public = matches!(import.vis, Visibility::Public(_));
            let mut waiting = vec![(Names::new(), &import.tree)];
            while let Some((mut path, tree)) = waiting.pop() {
                let mut add = |path: Names, name: String| {
                    imports.push(Import { path, name, is_public, attributes: &import.attrs });
                };
                match tree {
                    UseTree::Path(part) => {
                        path.push(part.ident.to_string());
                        waiting.push((path, &part.tree));
                    }
                    UseTree::Group(group) => {
                        waiting.extend(group.items.iter().map(|tree| (path.clone(), tree)));
                    }
                    UseTree::Name(last) if last.ident == "self" => {
                        let name = path.last().unwrap().clone();
                        add(path, name);
                    }
                    UseTree::Name(last) => {
                        path.push(last.ident.to_string());
                        add(path, last.ident.to_string());
                    }
                    UseTree::Rename(last) => {
                        path.push(last.ident.to_string());
                        add(path, last.rename.to_string());
                    }
                    UseTree::Glob(_) => globs.push((is_public, path)),
                }
            }
        }
        assert!(
            globs.iter().all(|(is_public, _)| !is_public),
            "{module:?}: exports a glob, which is not read"
        );
        (imports, globs.into_iter().map(|(_, path)| path).collect())
    }

    /// The target of a name in a module, if the module has it.
    fn find(&self, module: &[String], name: &str) -> Option<Target> {
        if self.0[module].iter().any(|item| ident(item).is_some_and(|ident| ident == name)) {
            return Some(Target::Item(module.to_vec(), name.to_owned()));
        }
        let (imports, globs) = self.imports(module);
        if let Some(import) = imports.iter().find(|import| import.name == name) {
            return self.follow(module, &import.path);
        }
        globs.iter().find_map(|glob| match self.follow(module, glob)? {
            Target::Module(names) if names != module => self.find(&names, name),
            _ => None,
        })
    }

    /// The target of a path in a module.
    fn follow(&self, module: &[String], path: &[String]) -> Option<Target> {
        let (mut at, mut rest) = (module.to_vec(), path);
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = more;
        }
        let is_relative = rest.len() < path.len();
        while let [first, more @ ..] = rest {
            let inside = [&at[..], std::slice::from_ref(first)].concat();
            if more.is_empty()
                && let Some(found) = self.last_of_path(&at, first, path, module)
            {
                return Some(found);
            }
            if !self.0.contains_key(&inside) {
                if let Some(imported) = self.imported_module(&at, first) {
                    (at, rest) = (imported, more);
                    continue;
                }
                let foreign = !is_relative && rest.len() == path.len() && !more.is_empty();
                return foreign.then(|| Target::Foreign(path.to_vec()));
            }
            (at, rest) = (inside, more);
        }
        Some(Target::Module(at))
    }

    /// The module that a module imports under this name, if it does.
    fn imported_module(&self, at: &[String], name: &str) -> Option<Vec<String>> {
        let (imports, _) = self.imports(at);
        let import = imports.into_iter().find(|import| import.name == name && import.path.len() > 1)?;
        let Target::Item(mut names, last) = self.follow(at, &import.path)? else { return None };
        names.push(last);
        self.0.contains_key(&names).then_some(names)
    }

    /// The target of the last name of a path. An import may name itself, as in `use half;`: then
    /// nothing, not an endless search.
    fn last_of_path(&self, at: &[String], name: &str, path: &[String], module: &[String]) -> Option<Target> {
        if at == module && path.len() == 1 && !self.0[at].iter().any(|i| ident(i).is_some_and(|i| i == name))
        {
            let (imports, _) = self.imports(at);
            let import = imports.into_iter().find(|import| import.name == name && import.path.len() > 1)?;
            return self.follow(at, &import.path);
        }
        self.find(at, name)
    }

    /// Every name that other crates see, below `module`: its target, and its attributes.
    fn exports(&self, module: &[String]) -> Vec<(String, Target, &[Attribute])> {
        let prefix: String = module.iter().map(|name| format!("{name}::")).collect();
        let mut exports = Vec::new();
        for item in &self.0[module] {
            let (Some(name), true) = (ident(item), is_public(item)) else { continue };
            if let Item::Mod(_) = item {
                exports.extend(self.exports(&[module, std::slice::from_ref(&name)].concat()));
            } else {
                exports.push((format!("{prefix}{name}"), Target::Item(module.to_vec(), name), &[][..]));
            }
        }
        let is_exported = |import: &Import<'_>| import.is_public && !is_hidden(import.attributes);
        for import in self.imports(module).0.into_iter().filter(is_exported) {
            let target = self.follow(module, &import.path);
            let target = target.unwrap_or_else(|| panic!("{prefix}{}: found no item of it", import.name));
            exports.push((format!("{prefix}{}", import.name), target, import.attributes));
        }
        exports
    }

    /// The list.
    fn list(&self) -> String {
        let exports = self.exports(&[]);
        let public: BTreeSet<&Target> = exports.iter().map(|(_, target, _)| target).collect();
        let mut entries = BTreeMap::new();
        for (name, target, attributes) in &exports {
            let (mut heads, mut lines) = (BTreeSet::new(), BTreeSet::new());
            match target {
                Target::Item(module, ident_of) => {
                    let here =
                        self.0[module].iter().filter(|item| ident(item).is_some_and(|i| i == *ident_of));
                    for item in here.filter(|item| !matches!(item, Item::Mod(_))) {
                        let head = describe(item, &mut lines);
                        heads.insert(format!(
                            "{}{}{head}",
                            conditions(attributes),
                            conditions(self::attributes(item))
                        ));
                    }
                    self.implementations(target, &public, &mut lines);
                }
                Target::Foreign(path) => drop(heads.insert(format!("use {}", path.join("::")))),
                Target::Module(names) => panic!("{name}: exports the private module {names:?}"),
            }
            let heads: Vec<String> = heads.into_iter().collect();
            let lines: String = lines.into_iter().map(|line| format!("    {line}\n")).collect();
            entries.insert(name, format!("{name}: {}\n{lines}", heads.join(" | ")));
        }
        entries.into_values().collect()
    }

    /// Adds the public methods and the traits of a type.
    fn implementations(&self, target: &Target, public: &BTreeSet<&Target>, lines: &mut BTreeSet<String>) {
        for (module, items) in &self.0 {
            for item in items {
                let Item::Impl(block) = item else { continue };
                let Type::Path(of) = &*block.self_ty else { continue };
                if self.follow(module, &segments(&of.path)).as_ref() != Some(target) {
                    continue;
                }
                let condition = conditions(&block.attrs);
                let generics = &block.generics;
                let (before, _, bounds) = generics.split_for_impl();
                if let Some((_, path, _)) = &block.trait_ {
                    let of_trait = self.follow(module, &segments(path));
                    let is_private =
                        matches!(&of_trait, Some(found @ Target::Item(..)) if !public.contains(found));
                    if !is_private {
                        let last = path.segments.last().unwrap().to_token_stream();
                        let of = &block.self_ty;
                        lines.insert(condition + &text(quote::quote!(impl #before #last for #of #bounds)));
                    }
                    continue;
                }
                for item in &block.items {
                    let (vis, attributes, signature) = match item {
                        ImplItem::Fn(f) => (&f.vis, &f.attrs, f.sig.to_token_stream()),
                        ImplItem::Const(c) => {
                            let (name, of) = (&c.ident, &c.ty);
                            (&c.vis, &c.attrs, quote::quote!(const #name: #of))
                        }
                        ImplItem::Macro(makes) => {
                            let makes = text(makes.to_token_stream());
                            panic!(
                                "{module:?}: {makes}: write the items of a public type out: the list sees none"
                            );
                        }
                        _ => continue,
                    };
                    if matches!(vis, Visibility::Public(_)) && !is_test(attributes) {
                        let place = if generics.params.is_empty() && bounds.is_none() {
                            String::new()
                        } else {
                            let of = &block.self_ty;
                            text(quote::quote!(impl #before #of #bounds)) + ": "
                        };
                        // `mut self` is no part of the interface.
                        let signature = text(signature).replace("(mut self", "(self");
                        lines.insert(condition.clone() + &conditions(attributes) + &place + &signature);
                    }
                }
            }
        }
    }
}

/// The names of a path, without generic arguments.
fn segments(path: &syn::Path) -> Names {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// The declaration of an item; adds a line for each public part.
fn describe(item: &Item, lines: &mut BTreeSet<String>) -> String {
    let mut head = String::new();
    if attributes(item).iter().any(|attribute| attribute.path().is_ident("non_exhaustive")) {
        head += "#[non_exhaustive] ";
    }
    for attribute in attributes(item).iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let list = attribute.meta.require_list().unwrap();
        lines.insert(format!("derive {}", text(list.tokens.clone())));
    }
    head + &text(match item {
        Item::Struct(item) => {
            let (name, generics) = (&item.ident, &item.generics);
            fields(&item.fields, lines);
            quote::quote!(struct #name #generics)
        }
        Item::Enum(item) => {
            for variant in &item.variants {
                let mut variant = variant.clone();
                variant.attrs.clear();
                for field in &mut variant.fields {
                    field.attrs.clear();
                }
                lines.insert(format!("variant {}", text(variant.to_token_stream())));
            }
            let (name, generics) = (&item.ident, &item.generics);
            quote::quote!(enum #name #generics)
        }
        Item::Trait(item) => {
            for part in &item.items {
                lines.insert(match part {
                    TraitItem::Fn(f) => {
                        let provided = if f.default.is_some() { "provided " } else { "required " };
                        provided.to_owned() + &text(f.sig.to_token_stream())
                    }
                    other => text(other.to_token_stream()),
                });
            }
            let (name, generics, above) = (&item.ident, &item.generics, &item.supertraits);
            let colon = (!above.is_empty()).then(|| quote::quote!(:));
            quote::quote!(trait #name #generics #colon #above)
        }
        Item::Fn(item) => item.sig.to_token_stream(),
        Item::Const(item) => {
            let (name, of) = (&item.ident, &item.ty);
            quote::quote!(const #name: #of)
        }
        Item::Type(item) => {
            let (name, generics, of) = (&item.ident, &item.generics, &item.ty);
            quote::quote!(type #name #generics = #of)
        }
        other => panic!("an item that is not read: {}", text(other.to_token_stream())),
    })
}

fn fields(fields: &Fields, lines: &mut BTreeSet<String>) {
    for (place, field) in fields.iter().enumerate() {
        lines.insert(if matches!(field.vis, Visibility::Public(_)) {
            let name = field.ident.as_ref().map_or(place.to_string(), ToString::to_string);
            format!("{}field {name}: {}", conditions(&field.attrs), text(field.ty.to_token_stream()))
        } else {
            "private fields".to_owned()
        });
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name and the visibility of an item that can be exported.
fn declared(item: &Item) -> Option<(&syn::Ident, &Visibility)> {
    Some(match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Mod(item) => (&item.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Union(item) => (&item.ident, &item.vis),
        _ => return None,
    })
}

fn ident(item: &Item) -> Option<String> {
    declared(item).map(|(name, _)| name.to_string())
}

fn is_public(item: &Item) -> bool {
    declared(item).is_some_and(|(_, vis)| matches!(vis, Visibility::Public(_)))
}

fn conditions(attributes: &[Attribute]) -> String {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.map(|condition| text(condition.to_token_stream()) + " ").collect()
}

fn is_test(attributes: &[Attribute]) -> bool {
    let condition = conditions(attributes);
    condition.contains("(test)")
        || condition.contains("all(test")
        || attributes.iter().any(|a| a.path().is_ident("test"))
}

/// Whether the documentation leaves out an item: it is for the project's other crates alone.
fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| text(attribute.to_token_stream()) == "#[doc(hidden)]")
}

/// Tokens as text, with spaces that depend on no version of the tokenizer.
fn text(tokens: TokenStream) -> String {
    let mut words = Vec::new();
    flatten(tokens, &mut words);
    let (mut out, mut last) = (String::new(), String::new());
    for word in words {
        let after_name =
            last.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '>') && last != "->";
        let tight = match word.as_str() {
            "," | ";" | ":" | "::" | ")" | "]" | ">" | ">>" | "." | ".." | "..=" => true,
            "(" | "<" | "!" => after_name,
            _ => false,
        };
        let opens = matches!(&*last, "" | "(" | "[" | "<" | "&" | "::" | "'" | "#" | "!" | "." | "?" | "*");
        // Lists on several lines end with a comma.
        if matches!(&*word, ")" | ">" | "]" | "}") && last == "," {
            out.pop();
        }
        if !tight && !opens {
            out.push(' ');
        }
        out += &word;
        last = word;
    }
    out
}

fn flatten(tokens: TokenStream, words: &mut Vec<String>) {
    let mut joined = String::new();
    for token in tokens {
        match token {
            TokenTree::Punct(punct) => {
                joined.push(punct.as_char());
                if punct.spacing() == Spacing::Alone || punct.as_char() == '\'' {
                    words.push(std::mem::take(&mut joined));
                }
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => ("(", ")"),
                    proc_macro2::Delimiter::Bracket => ("[", "]"),
                    proc_macro2::Delimiter::Brace => ("{", "}"),
                    proc_macro2::Delimiter::None => ("", ""),
                };
                words.push(open.to_owned());
                flatten(group.stream(), words);
                words.push(close.to_owned());
            }
            other => words.push(other.to_string()),
        }
    }
}

#[test]
fn the_public_interface_is_the_list_in_api_txt() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (list, file) = (Crate::read(&root.join("host")).list(), root.join("tests/golden/api.txt"));
    if std::env::var_os("TAGORE_WRITE_API").is_some() {
        fs::write(&file, &list).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap_or_default().replace("\r\n", "\n");
    let (new, old): (BTreeSet<&str>, BTreeSet<&str>) = (list.lines().collect(), golden.lines().collect());
    let added: Vec<_> = new.difference(&old).collect();
    let removed: Vec<_> = old.difference(&new).collect();
    assert!(
        list == golden,
        "the public interface differs from tests/golden/api.txt: added {added:#?}, removed {removed:#?}; if that is \
         intended, run TAGORE_WRITE_API=1 cargo test api, and note it in CHANGELOG.md"
    );
}
