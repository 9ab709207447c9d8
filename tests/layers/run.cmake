# cmake -DCOMPILER=c++ -DWORK=folder -DCORE=dirs -DENGINE=dirs -DREWRITE=dirs -DTRAINING=dirs -P run.cmake: files that
# include from another folder of src/ compile only where their module links that folder. The lists are the include
# directories of refold_core, refold_engine, refold_compress_rewrite and refold_compress_training.

# check(<include directories> <header> <status>): the compiler's exit status for a file that includes the header.
function(check directories header expected)
    list(TRANSFORM directories PREPEND -I)
    file(WRITE "${WORK}/include.cpp" "#include \"${header}\"\n")
    execute_process(COMMAND "${COMPILER}" -std=c++20 -E ${directories} "${WORK}/include.cpp"
        OUTPUT_QUIET RESULT_VARIABLE status ERROR_VARIABLE messages)
    if(NOT status EQUAL expected)
        message(FATAL_ERROR "#include \"${header}\": the compiler returned ${status}, expected ${expected}\n${messages}")
    endif()
    if(NOT status EQUAL 0 AND NOT messages MATCHES "${header}: No such file|'${header}' file not found")
        message(FATAL_ERROR "#include \"${header}\" fails for another reason:\n${messages}")
    endif()
endfunction()

check("${CORE}" core/error.h 0)
check("${CORE}" io/gguf.h 1)
check("${CORE}" model/model.h 1)
check("${ENGINE}" engine/engine.h 0)
check("${ENGINE}" model/model.h 0)
check("${ENGINE}" compress/method/method.h 1)
check("${ENGINE}" vocab/hf_vocab.h 1)  # the model's own affair: a PRIVATE link
# Packages of compress.
check("${REWRITE}" compress/rewrite/heads.h 0)
check("${REWRITE}" compress/method/method.h 0)
check("${REWRITE}" compress/head_sharing/matching.h 1)
check("${REWRITE}" compress/recipe.h 1)
check("${TRAINING}" compress/head_sharing/matching.h 0)
check("${TRAINING}" compress/narrowing/narrowable.h 1)
