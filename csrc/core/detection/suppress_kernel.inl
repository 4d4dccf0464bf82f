// The inner loop of NMS. Divides as torchvision does, so that a box on the threshold meets the same fate.

template <class Real, class Mark>
void suppress(const BoxColumns<Real>& boxes, const int* keepers, int count, int begin, int end,
              Real threshold, Mark* marks) {
    using Vector = typename VectorOf<Real>::Type;
    typedef Mark Marks __attribute__((vector_size(vector_bytes)));
    constexpr int width = static_cast<int>(vector_bytes / sizeof(Real));
    const Vector zero{};
    for (int j = begin; j < end; j += width) {
        const auto x1 = load_vector<Vector>(boxes.x1 + j), y1 = load_vector<Vector>(boxes.y1 + j);
        const auto x2 = load_vector<Vector>(boxes.x2 + j), y2 = load_vector<Vector>(boxes.y2 + j);
        const auto area = load_vector<Vector>(boxes.area + j);
        auto marked = load_vector<Marks>(marks + j);
        for (int k = 0; k < count; ++k) {
            const int i = keepers[k];
            const Vector left = boxes.x1[i] > x1 ? zero + boxes.x1[i] : x1;
            const Vector top = boxes.y1[i] > y1 ? zero + boxes.y1[i] : y1;
            const Vector right = boxes.x2[i] < x2 ? zero + boxes.x2[i] : x2;
            const Vector bottom = boxes.y2[i] < y2 ? zero + boxes.y2[i] : y2;
            const Vector w = right - left, h = bottom - top;
            const Vector overlap = (w > zero ? w : zero) * (h > zero ? h : zero);
            marked |= overlap / (boxes.area[i] + area - overlap) > threshold;
        }
        store_vector(marks + j, marked);
    }
}
