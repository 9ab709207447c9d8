// The frame of HTML pages: one file without network access or scripts, light or dark by the reader's system
// setting, for phones to desktops. Void elements are closed, so that pages are also well-formed XML.
#pragma once

#include <string>
#include <vector>

#include "report/figure.h"

namespace refold {

// `body`: sections as markup; title and subtitle are escaped here.
std::string page_html(const std::string& title, const std::string& subtitle, const std::string& body);

std::string figure_html(const Figure& figure, const std::string& about = "");
// A section of figures side by side; empty when there are none.
std::string gallery_html(const std::string& heading, const std::string& introduction,
                         const std::vector<Figure>& figures);
// A wide table that scrolls by itself. `content`: markup of the table's content.
std::string table_html(const std::string& label, const std::string& content);

}  // namespace refold
