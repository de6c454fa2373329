package memory

import (
	"encoding/json"
	"fmt"
	"io"
)

// startPage records the memory of the page that has arrived. It is part of the reservation.
func (r *Reservation) startPage(bytes int64) {
	if r != nil {
		r.page = bytes
	}
}

// endPage removes the memory of the previous page from the reservation.
func (r *Reservation) endPage() {
	if r != nil {
		r.Shrink(r.page)
		r.page = 0
	}
}

// readPage reads a list and reduces its items. It holds one item at a time, because a page can be many times as large
// as a reservation. Memory for copies of the result remains reserved.
func (t Transport) readPage(r *Reservation, from io.Reader) (text []byte, err error) {
	in := &reserving{from: from, reservation: r}
	defer in.keep(0)
	p := page{Decoder: json.NewDecoder(in), in: in, reduce: t.ReduceItem}
	if err = p.read(); err == nil {
		_, err = io.Copy(io.Discard, from) // so that the connection can be used again
	}
	return p.text, err
}

// page is a list that is being read.
type page struct {
	*json.Decoder
	in      *reserving
	reduce  func(item []byte) []byte
	text    []byte
	value   json.RawMessage // buffer of next
	largest int64           // length of the largest value
}

func (p *page) read() error {
	if err := p.delimiter('{'); err != nil {
		return err
	}
	for comma := false; p.More(); comma = true {
		if err := p.readField(comma); err != nil {
			return err
		}
	}
	return p.delimiter('}')
}

func (p *page) readField(comma bool) error {
	token, err := p.Token()
	if err != nil {
		return err
	}
	key, err := json.Marshal(token)
	if err != nil {
		return err
	}
	if err := p.write(comma, append(key, ':')); err != nil {
		return err
	}
	if token == "items" {
		return p.readItems()
	}
	value, err := p.next()
	if err != nil {
		return err
	}
	return p.write(false, value)
}

func (p *page) readItems() error {
	switch token, err := p.Token(); {
	case err != nil:
		return err
	case token == nil:
		return p.write(false, []byte("[]"))
	case token != json.Delim('['):
		return fmt.Errorf("decode a list: got the items %v", token)
	}
	if err := p.write(false, []byte("[")); err != nil {
		return err
	}
	for comma := false; p.More(); comma = true {
		item, err := p.next()
		if err != nil {
			return err
		}
		if err := p.write(comma, p.reduce(item)); err != nil {
			return err
		}
	}
	return p.delimiter(']')
}

// next reads a value, which is valid until the following call.
func (p *page) next() ([]byte, error) {
	err := p.Decode(&p.value)
	p.largest = max(p.largest, int64(len(p.value)))
	p.in.keep(copies * max(p.largest, p.in.read-p.InputOffset())) // the buffers do not shrink
	return p.value, err
}

// write appends a value to the text, after a comma if comma is set.
func (p *page) write(comma bool, value []byte) error {
	if comma {
		value = append([]byte{','}, value...)
	}
	if err := p.in.reservation.Grow(copies * int64(len(value))); err != nil {
		return err
	}
	p.text = append(p.text, value...)
	return nil
}

// delimiter reads a delimiter and appends it to the text.
func (p *page) delimiter(want json.Delim) error {
	token, err := p.Token()
	switch {
	case err != nil:
		return err
	case token != want:
		return fmt.Errorf("decode a list: got %v instead of %v", token, want)
	}
	return p.write(false, []byte(want.String()))
}

// reserving is a reader that reserves memory for what it reads.
type reserving struct {
	from        io.Reader
	reservation *Reservation
	read        int64 // bytes that have been read
	held        int64 // bytes that are reserved
}

func (r *reserving) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if grown := r.reservation.Grow(copies * int64(n)); grown != nil {
		return 0, grown
	}
	r.held += copies * int64(n)
	r.read += int64(n)
	return n, err
}

// keep reduces the reserved memory.
func (r *reserving) keep(bytes int64) {
	if excess := r.held - bytes; excess > 0 {
		r.reservation.Shrink(excess)
		r.held -= excess
	}
}
