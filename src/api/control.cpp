#include "refold/control.h"

#include "api/impl.h"
#include "core/error.h"

namespace refold {

Controlled::Controlled(const Control& control)
    : control_(control), observer_([&control](const ProgressUpdate& p) {
          if (control.stop.stop_requested()) return false;
          if (control.on_progress) control.on_progress({p.label, p.done, p.total, p.unit});
          return true;
      }) {
    check();
}

void Controlled::check() const {
    if (control_.stop.stop_requested()) fail(ErrorCode::interrupted, "refold", "cancelled");
}

}  // namespace refold
