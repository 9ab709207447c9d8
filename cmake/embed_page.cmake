# cmake -DOUTPUT=page_text.cpp -DFILE=page.html -P embed_page.cmake: the page as string literals, in pieces that
# every compiler takes.
file(READ "${FILE}" text)
string(REPLACE ";" "\\;" text "${text}")
string(REPLACE "\n" "\n)page\"\n    R\"page(" text "${text}")
string(REPLACE "\\;" ";" text "${text}")
file(WRITE "${OUTPUT}" "// Made by cmake/embed_page.cmake from src/serve/page.html.\n#include \"serve/page.h\"\n\nnamespace refold {\n\nconst std::string_view kPage =\n    R\"page(${text})page\";\n\n}  // namespace refold\n")
