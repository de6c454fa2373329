package expression

import (
	"errors"
	"strings"
)

// Part is a piece of a string: text, or an expression.
type Part struct {
	Text       string // the text, or what is between ${ and }
	Expression bool
}

// ErrUnclosed says that a string has a ${ whose } is missing.
var ErrUnclosed = errors.New("a ${ without its }; for the text ${ write $${")

// ErrEmpty says that there is nothing between ${ and }.
var ErrEmpty = errors.New("there is no expression in ${}; for the text ${ write $${")

// Scan takes a string apart. What it returns is in the string's order, without empty text: nothing for "".
func Scan(s string) ([]Part, error) {
	var parts []Part
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			parts = append(parts, Part{Text: text.String()})
			text.Reset()
		}
	}
	for s != "" {
		switch {
		case strings.HasPrefix(s, "$${"):
			text.WriteString("${")
			s = s[3:]
		case strings.HasPrefix(s, "${"):
			end := endOfExpression(s[2:])
			if end < 0 {
				return nil, ErrUnclosed
			}
			if strings.TrimSpace(s[2:2+end]) == "" {
				return nil, ErrEmpty
			}
			flush()
			parts = append(parts, Part{Text: s[2 : 2+end], Expression: true})
			s = s[2+end+1:]
		default:
			text.WriteByte(s[0])
			s = s[1:]
		}
	}
	flush()
	return parts, nil
}

// endOfExpression is where the } is that closes the expression, which may hold braces, strings that hold some, and
// comments: -1 if there is none.
func endOfExpression(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '{':
			depth++
		case '}':
			if depth == 0 {
				return i
			}
			depth--
		case '"', '\'':
			length := lengthOfLiteral(s[i:], isRaw(s[:i]))
			if length < 0 {
				return -1
			}
			i += length - 1
		case '`':
			length := strings.IndexByte(s[i+1:], '`')
			if length < 0 {
				return -1
			}
			i += length + 1
		case '/':
			if strings.HasPrefix(s[i:], "//") {
				line := strings.IndexByte(s[i:], '\n')
				if line < 0 {
					return -1
				}
				i += line
			}
		}
	}
	return -1
}

// lengthOfLiteral is how long the string literal is that s begins with, its quotes included: -1 if it does not end.
func lengthOfLiteral(s string, raw bool) int {
	quote := s[:1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s, triple) {
		quote = triple
	}
	for i := len(quote); i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote)
		case s[i] == '\\' && !raw:
			i++
		case s[i] == '\n' && len(quote) == 1:
			return -1
		}
	}
	return -1
}

// isRaw tells whether what stands before a quote makes the literal a raw one: r, with a b before or after it or none. An
// identifier that happens to end so cannot stand before a quote.
func isRaw(before string) bool {
	for i := len(before) - 1; i >= 0 && i >= len(before)-2; i-- {
		switch before[i] {
		case 'r', 'R':
			return true
		case 'b', 'B':
		default:
			return false
		}
	}
	return false
}
