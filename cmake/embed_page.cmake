# cmake -DOUTPUT=page_text.cpp -DFILE=page.html -P embed_page.cmake: the page as a string literal.
file(READ "${FILE}" text)
file(WRITE "${OUTPUT}" "// Made by cmake/embed_page.cmake from src/serve/page.html.\n#include \"serve/page.h\"\n\nnamespace refold {\n\nconst std::string_view kPage = R\"page(${text})page\";\n\n}  // namespace refold\n")
