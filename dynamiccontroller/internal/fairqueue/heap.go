package fairqueue

// heap is a binary heap whose elements know their place, so that any can be moved or removed. container/heap would
// box every element.
type heap[E any] struct {
	elements []E
	before   func(a, b E) bool
	moved    func(e E, at int) // at is -1 when e left
}

func (h *heap[E]) len() int { return len(h.elements) }

func (h *heap[E]) first() E { return h.elements[0] }

func (h *heap[E]) push(e E) {
	h.elements = append(h.elements, e)
	h.moved(e, len(h.elements)-1)
	h.up(len(h.elements) - 1)
}

func (h *heap[E]) pop() E {
	e := h.elements[0]
	h.remove(0)
	return e
}

func (h *heap[E]) remove(at int) {
	last := len(h.elements) - 1
	gone := h.elements[at]
	h.set(at, h.elements[last])
	var none E
	h.elements[last] = none
	h.elements = h.elements[:last]
	if at < last {
		h.fix(at)
	}
	h.moved(gone, -1)
}

func (h *heap[E]) fix(at int) {
	if !h.down(at) {
		h.up(at)
	}
}

func (h *heap[E]) set(at int, e E) {
	h.elements[at] = e
	h.moved(e, at)
}

func (h *heap[E]) up(at int) {
	e := h.elements[at]
	for at > 0 {
		parent := (at - 1) / 2
		if !h.before(e, h.elements[parent]) {
			break
		}
		h.set(at, h.elements[parent])
		at = parent
	}
	h.set(at, e)
}

func (h *heap[E]) down(at int) bool {
	start, e := at, h.elements[at]
	for {
		child := 2*at + 1
		if child >= len(h.elements) {
			break
		}
		if right := child + 1; right < len(h.elements) && h.before(h.elements[right], h.elements[child]) {
			child = right
		}
		if !h.before(h.elements[child], e) {
			break
		}
		h.set(at, h.elements[child])
		at = child
	}
	h.set(at, e)
	return at > start
}
