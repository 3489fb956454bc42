// The program that the precompiled headers.h belongs to: CMake hands such headers only from target to target.
// It also shows that they compile.
int main() { return 0; }
