# Builds an index of base.fbin and saves it: docs/how-to-c.md.

const lib = "libtagore.so.0"
check(status) = status == 0 || error(unsafe_string(@ccall lib.tagore_last_error()::Cstring))
base, builder, index = (Ref{Ptr{Cvoid}}(C_NULL) for _ in 1:3)
check(@ccall lib.tagore_vectors_open("base.fbin"::Cstring, C_NULL::Ptr{Cvoid}, base::Ref{Ptr{Cvoid}})::Cint)
check(@ccall lib.tagore_builder_create("nsg"::Cstring, builder::Ref{Ptr{Cvoid}})::Cint)
check(@ccall lib.tagore_builder_build(builder[]::Ptr{Cvoid}, base[]::Ptr{Cvoid}, C_NULL::Ptr{Cvoid},
                                      C_NULL::Ptr{Cvoid}, index::Ref{Ptr{Cvoid}})::Cint)
check(@ccall lib.tagore_index_save(index[]::Ptr{Cvoid}, "julia.tagore"::Cstring)::Cint)
