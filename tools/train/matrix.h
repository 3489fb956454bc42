// Matrices as the products take them: views of memory that somebody else owns.
#pragma once
#include <cstddef>

namespace peal::train {

// rows × columns floats, row after row, `stride` floats from one row to the next.
struct Matrix {
  float* data;
  size_t rows;
  size_t columns;
  size_t stride;
};
struct ConstMatrix {
  ConstMatrix(const float* from, size_t rowCount, size_t columnCount, size_t rowStride)
      : data(from), rows(rowCount), columns(columnCount), stride(rowStride) {}
  ConstMatrix(const Matrix& other) : ConstMatrix(other.data, other.rows, other.columns, other.stride) {}
  const float* data;
  size_t rows;
  size_t columns;
  size_t stride;
};

// What happens with the values that the product meets in its target.
enum class Target { Overwrite, Accumulate };

}  // namespace peal::train
