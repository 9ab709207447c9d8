#include <refold/refold.h>

#include <iostream>

int main() {
    std::cout << refold::version() << '\n';
    return 0;
}
