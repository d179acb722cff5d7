//! The attribute `#[kernel]` of `cuda_std`, which documents it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Error, Expr, FnArg, Ident, ItemFn, Pat, ReturnType, Type};

/// Makes a function a kernel: `#[kernel(unsafe, block = 256)]`.
///
/// - `unsafe`: the author's promise below.
/// - `block = N` or `block = A..=B`: threads per block, constant, a multiple of 32.
/// - `shared = EXPRESSION`: bytes of dynamic shared memory, computed from the kernel's parameters;
///   0 by default.
/// - `blocks_per_multiprocessor = N`: blocks that are resident together, which bounds the registers
///   of a thread.
///
/// The function is an `unsafe fn` that returns nothing, with parameters that are plain names of
/// `Copy` types: numbers, views and `#[repr(C)]` structs of them. For a GPU it becomes an entry of
/// the PTX; on the host it stays a function, and a type of the same name implements
/// `cuda_std::launch::Kernel`.
///
/// # Safety
///
/// A GPU checks nothing that a kernel does, so all code that a kernel calls relies on one promise
/// of its author, `unsafe` in the attribute, as `#[unsafe(no_mangle)]` is one for a whole program.
/// For all launches that meet the contract and the `# Safety` section of the kernel:
///
/// - Every access through a view of memory lies in what the section names, the dynamic shared
///   memory of the contract or a static shared array, at a multiple of its size, and reads what was
///   written. It races with no other.
/// - The whole warp, or exactly the lanes of the mask, reach each exchange between lanes together.
///   All threads of a barrier reach it.
///
/// On the host, where the lane checks all of this, only one promise is left: with any arguments,
/// the body touches memory through views alone, not through addresses in its arguments.
#[proc_macro_attribute]
pub fn kernel(attributes: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let mut contract = Contract::default();
    let parser = syn::meta::parser(|meta| contract.read(meta));
    let parsed = parser.parse(attributes).and_then(|()| syn::parse::<ItemFn>(item));
    parsed.and_then(|function| expand(&contract, &function)).unwrap_or_else(Error::into_compile_error).into()
}

#[derive(Default)]
struct Contract {
    is_unsafe: bool,
    block: Option<Expr>,
    shared: Option<Expr>,
    resident: Option<Expr>,
}

impl Contract {
    fn read(&mut self, meta: ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("unsafe") {
            self.is_unsafe = true;
            return Ok(());
        }
        let slot = match meta.path.get_ident().map(Ident::to_string).as_deref() {
            Some("block") => &mut self.block,
            Some("shared") => &mut self.shared,
            Some("blocks_per_multiprocessor") => &mut self.resident,
            _ => return Err(meta.error("expected unsafe, block, shared or blocks_per_multiprocessor")),
        };
        *slot = Some(meta.value()?.parse()?);
        Ok(())
    }
}

fn expand(contract: &Contract, function: &ItemFn) -> syn::Result<TokenStream> {
    check(function)?;
    if !contract.is_unsafe {
        let message = "nothing checks a kernel on a GPU, so its author promises that it is sound: \
                       #[kernel(unsafe, block = 256)]";
        return Err(Error::new(function.sig.span(), message));
    }
    let Some(block) = &contract.block else {
        return Err(Error::new(function.sig.span(), "a kernel states its block: block = 256"));
    };
    let (least, most) = match block {
        Expr::Range(range) => match (&range.start, &range.end) {
            (Some(start), Some(end)) => (start.as_ref().clone(), end.as_ref().clone()),
            _ => return Err(Error::new(range.span(), "expected both ends: block = 32..=1024")),
        },
        one => (one.clone(), one.clone()),
    };
    let shared = contract.shared.as_ref().map_or_else(|| quote!(0), |expression| quote!(#expression));
    let resident = contract.resident.as_ref().map_or_else(|| quote!(0), |expression| quote!(#expression));

    let ItemFn { attrs, vis, sig, block: body } = function;
    let (name, inputs) = (&sig.ident, &sig.inputs);
    let (names, types): (Vec<&Ident>, Vec<&Type>) = parameters(function)?.into_iter().unzip();
    let (entry, bounds) = (name.to_string(), format!("//@launch_bounds {name} {{}} {{}}"));
    Ok(quote! {
        #(#attrs)*
        #[cfg(target_os = "cuda")]
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #name(#inputs) #body

        // `cuda_builder` turns this line into directives of the entry.
        #[cfg(target_os = "cuda")]
        ::core::arch::global_asm!(#bounds, const { (#most) as u32 }, const { (#resident) as u32 });

        #(#attrs)*
        #[cfg(not(target_os = "cuda"))]
        #vis unsafe fn #name(#inputs) #body

        /// The kernel of the same name, for launches.
        #[cfg(not(target_os = "cuda"))]
        #[expect(non_camel_case_types, reason = "the name of the kernel")]
        #[derive(Clone, Copy, Debug)]
        #vis enum #name {}

        #[cfg(not(target_os = "cuda"))]
        // SAFETY: the author's promise, `unsafe` in the attribute.
        unsafe impl ::cuda_std::launch::Kernel for #name {
            const NAME: &'static str = #entry;
            type Arguments = (#(#types,)*);

            #[allow(unused_variables, clippy::allow_attributes, reason = "few contracts ask for all arguments")]
            fn contract(arguments: &Self::Arguments) -> ::cuda_std::launch::Contract {
                let (#(#names,)*) = *arguments;
                ::cuda_std::launch::Contract {
                    block: ((#least) as u32, (#most) as u32),
                    shared: (#shared) as u32,
                }
            }

            unsafe fn run(arguments: Self::Arguments) {
                let (#(#names,)*) = arguments;
                // SAFETY: the caller's guarantee.
                unsafe { #name(#(#names),*) }
            }
        }
    })
}

fn check(function: &ItemFn) -> syn::Result<()> {
    let sig = &function.sig;
    let error = |span, message: &str| Err(Error::new(span, message));
    if sig.unsafety.is_none() {
        return error(
            sig.fn_token.span(),
            "a kernel is an `unsafe fn`: nothing checks what it is launched with",
        );
    }
    if let ReturnType::Type(_, kind) = &sig.output {
        return error(kind.span(), "a kernel returns nothing: write results through a GlobalMut");
    }
    if !sig.generics.params.is_empty() {
        return error(
            sig.generics.span(),
            "a kernel is not generic: call a generic function from one kernel per type",
        );
    }
    if sig.asyncness.is_some() || sig.abi.is_some() {
        return error(sig.span(), "a kernel is a plain `unsafe fn`");
    }
    Ok(())
}

fn parameters(function: &ItemFn) -> syn::Result<Vec<(&Ident, &Type)>> {
    function.sig.inputs.iter().map(parameter).collect()
}

fn parameter(argument: &FnArg) -> syn::Result<(&Ident, &Type)> {
    let FnArg::Typed(argument) = argument else {
        return Err(Error::new_spanned(argument, "a kernel is not a method"));
    };
    let Pat::Ident(pattern) = argument.pat.as_ref() else {
        return Err(Error::new_spanned(argument, "a parameter of a kernel is a plain name"));
    };
    if let Type::Reference(_) | Type::Ptr(_) = argument.ty.as_ref() {
        return Err(Error::new_spanned(argument, "a kernel takes memory as Global<T> or GlobalMut<T>"));
    }
    Ok((&pattern.ident, argument.ty.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of `#[kernel(attributes)] function`, if there is one.
    fn error(attributes: TokenStream, function: TokenStream) -> Option<String> {
        let mut contract = Contract::default();
        let parsed = syn::meta::parser(|meta| contract.read(meta)).parse2(attributes);
        let function = parsed.and_then(|()| syn::parse2(function));
        function.and_then(|function| expand(&contract, &function)).err().map(|error| error.to_string())
    }

    #[test]
    fn a_kernel_without_its_authors_promise_is_refused() {
        let function = quote!(
            unsafe fn scale(n: u32) {}
        );
        assert_eq!(error(quote!(unsafe, block = 32), function.clone()), None);
        let refused = error(quote!(block = 32), function.clone()).unwrap();
        assert!(refused.ends_with("#[kernel(unsafe, block = 256)]"), "{refused}");
        let refused = error(quote!(unsafe), function).unwrap();
        assert!(refused.contains("states its block"), "{refused}");
    }
}
