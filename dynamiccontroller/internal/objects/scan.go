package objects

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/json"
)

// text is the input of the scanner: received bytes, or the data of a record.
type text interface{ string | []byte }

// span is a range of a text. The zero value means that the value is absent.
type span struct{ from, to int }

// members iterates over the members of a JSON object without decoding their values. If the syntax is invalid, the
// iteration ends early or yields wrong members, but does not panic.
type members[T text] struct {
	in  T
	at  int // position after the current member, or of the opening brace
	key span
	// value is the position of the value. Before the caller calls next, it must pass the value's end to endAt or call
	// skip.
	value int
	state memberState
	// exponent reports whether a value passed to skip has a number with an exponent.
	exponent bool
}

type memberState uint8

const (
	beforeFirst memberState = iota
	betweenMembers
	afterLast // at is the position after the closing brace
	malformed
)

// membersOf returns an iterator over the members of the object at a position.
func membersOf[T text](in T, at int) members[T] { return members[T]{in: in, at: at} }

// next moves to the next member. It returns false after the last member or if the syntax is invalid.
func (m *members[T]) next() bool {
	i := skipSpace(m.in, m.at)
	if i >= len(m.in) || m.state >= afterLast {
		return m.fail()
	}
	switch c := m.in[i]; {
	case m.state == beforeFirst && c == '{':
		if i = skipSpace(m.in, i+1); i < len(m.in) && m.in[i] == '}' {
			return m.end(i)
		}
	case m.state == betweenMembers && c == ',':
		i = skipSpace(m.in, i+1)
	case m.state == betweenMembers && c == '}':
		return m.end(i)
	default:
		return m.fail()
	}
	keyEnd := skipString(m.in, i)
	if keyEnd < 0 {
		return m.fail()
	}
	m.key = span{i, keyEnd}
	if i = skipSpace(m.in, keyEnd); i >= len(m.in) || m.in[i] != ':' {
		return m.fail()
	}
	if m.value = skipSpace(m.in, i+1); m.value >= len(m.in) {
		return m.fail()
	}
	m.state = betweenMembers
	return true
}

func (m *members[T]) end(brace int) bool {
	m.at, m.state = brace+1, afterLast
	return false
}

func (m *members[T]) fail() bool {
	if m.state != afterLast {
		m.state = malformed
	}
	return false
}

// skip moves to the end of the current value and returns its span.
func (m *members[T]) skip() span {
	if c := m.in[m.value]; c == '{' || c == '[' {
		end, exponent := scanNested(m.in, m.value)
		m.exponent = m.exponent || exponent
		m.endAt(end)
		return span{m.value, m.at}
	}
	m.endAt(skipValue(m.in, m.value))
	m.exponent = m.exponent || isExponent(m.in, m.value, m.at)
	return span{m.value, m.at}
}

// endAt sets the end of the current value. A negative end means that the value is malformed.
func (m *members[T]) endAt(end int) {
	if end < 0 {
		m.state, end = malformed, len(m.in)
	}
	m.at = end
}

func skipSpace[T text](in T, i int) int {
	for i < len(in) && (in[i] == ' ' || in[i] == '\n' || in[i] == '\t' || in[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the end of the string at a position, or -1.
func skipString[T text](in T, i int) int {
	if i >= len(in) || in[i] != '"' {
		return -1
	}
	for i++; i < len(in); i++ {
		if c := in[i]; c == '"' {
			return i + 1
		} else if c == '\\' {
			i++
		}
	}
	return -1
}

// skipValue returns the end of the value at a position, or -1.
func skipValue[T text](in T, i int) int {
	if i >= len(in) {
		return -1
	}
	switch in[i] {
	case '"':
		return skipString(in, i)
	case '{', '[':
		end, _ := scanNested(in, i)
		return end
	}
	start := i
	for i < len(in) && !endsScalar(in[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\t', '\r', ':', '"', '{', '[':
		return true
	}
	return false
}

// isExponent reports whether a scalar is a number with an exponent.
func isExponent[T text](in T, from, to int) bool {
	if !isDigit(in[from]) && in[from] != '-' {
		return false
	}
	for i := from; i < to; i++ {
		if in[i] == 'e' || in[i] == 'E' {
			return true
		}
	}
	return false
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// structural marks the characters that matter to scanNested.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true, 'e': true, 'E': true}

// scanNested returns the end of the object or array at a position, or -1, and whether it has a number with an exponent.
func scanNested[T text](in T, i int) (end int, exponent bool) {
	for depth := 0; i < len(in); i++ {
		c := in[i]
		if !structural[c] {
			continue
		}
		switch c {
		case '"':
			if i = skipString(in, i) - 1; i < 0 {
				return -1, exponent
			}
		case '{', '[':
			depth++
		case 'e', 'E': // otherwise of true or false
			exponent = exponent || i > 0 && isDigit(in[i-1])
		default:
			if depth--; depth == 0 {
				return i + 1, exponent
			}
		}
	}
	return -1, exponent
}

// isPlain reports whether a quoted string can be used without decoding: it is ASCII and has no escapes.
func isPlain[T text](in T, s span) bool {
	for i := s.from + 1; i < s.to-1; i++ {
		if c := in[i]; c < 0x20 || c >= 0x80 || c == '\\' {
			return false
		}
	}
	return true
}

// unquote decodes a quoted string. It does not copy a plain string.
func unquote[T text](in T, s span) (decoded T, err error) {
	if s.to-s.from < len(`""`) {
		return decoded, errors.New("not a string")
	}
	if isPlain(in, s) {
		return in[s.from+1 : s.to-1], nil
	}
	var value string
	err = json.Unmarshal([]byte(in[s.from:s.to]), &value)
	return T(value), err
}
