# cmake -DOUTPUT=page_text.cpp -DFOLDER=page "-DSCRIPTS=a.js;b.js" -P embed_page.cmake: page.html, with page.css and the
# scripts, in their order, in place of @STYLE@ and @SCRIPT@, as a string literal.
file(READ "${FOLDER}/page.html" text)
file(READ "${FOLDER}/page.css" style)
set(script "")
foreach(name IN LISTS SCRIPTS)
    file(READ "${FOLDER}/${name}" part)
    string(APPEND script "\n// ---- ${name}\n\n${part}")
endforeach()
# The ends of the element and of the literal.
foreach(end "</style" "</script" ")page\"")
    string(FIND "${style}${script}" "${end}" found)
    if(NOT found EQUAL -1)
        message(FATAL_ERROR "embed_page: the style and the scripts must not contain ${end}")
    endif()
endforeach()
string(REPLACE "@STYLE@" "${style}" text "${text}")
string(REPLACE "@SCRIPT@" "${script}" text "${text}")
file(WRITE "${OUTPUT}" "// Made by cmake/embed_page.cmake from src/serve/page.\n#include \"serve/page.h\"\n\nnamespace refold {\n\nconst std::string_view kPage = R\"page(${text})page\";\n\n}  // namespace refold\n")
