package expression

import (
	"errors"
	"regexp"
	"strings"
)

// Part is a part of a string, which is either text or an expression.
type Part struct {
	Text       string // the text, or the expression without ${ and }
	Expression bool
}

var (
	// ErrUnclosed is returned if a ${ in the string is not closed.
	ErrUnclosed = errors.New("${ without }; write $${ for the text ${")
	// ErrEmpty is returned if the string contains an empty expression.
	ErrEmpty = errors.New("${} without an expression; write $${ for the text ${")
)

// Scan splits a string into its parts, in order. It omits empty text.
func Scan(s string) ([]Part, error) {
	var parts []Part
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			parts = append(parts, Part{Text: text.String()})
			text.Reset()
		}
	}
	for {
		dollar := strings.Index(s, "${")
		if dollar < 0 {
			text.WriteString(s)
			flush()
			return parts, nil
		}
		if dollar > 0 && s[dollar-1] == '$' {
			text.WriteString(s[:dollar-1] + "${")
			s = s[dollar+2:]
			continue
		}
		text.WriteString(s[:dollar])
		s = s[dollar+2:]
		end := endOfExpression(s)
		if end < 0 {
			return nil, ErrUnclosed
		}
		if strings.TrimSpace(s[:end]) == "" {
			return nil, ErrEmpty
		}
		flush()
		parts = append(parts, Part{Text: s[:end], Expression: true})
		s = s[end+1:]
	}
}

// token matches everything that matters for finding the end of an expression: string literals, quoted field names,
// comments and braces. For an unclosed quote or comment, it matches only the opening characters.
var token = regexp.MustCompile(strings.Join([]string{
	`(?:[bB]?[rR]|[rR][bB])(?:"""(?s:.*?)"""|'''(?s:.*?)'''|"[^"\n]*"|'[^'\n]*')`,
	`"""(?s:\\.|[^\\])*?"""`, `'''(?s:\\.|[^\\])*?'''`, `"(?:\\(?s:.)|[^"\\\n])*"`, `'(?:\\(?s:.)|[^'\\\n])*'`,
	"`[^`]*`", `//[^\n]*\n`, `//`, "[\"'`{}]",
}, "|"))

// endOfExpression returns the index of the brace that closes the expression at the start of s, or -1 if it is missing.
func endOfExpression(s string) int {
	depth, start := 0, 0
	for {
		match := token.FindStringIndex(s[start:])
		if match == nil {
			return -1
		}
		found := s[start+match[0] : start+match[1]]
		switch found {
		case "{":
			depth++
		case "}":
			if depth--; depth < 0 {
				return start + match[0]
			}
		case `"`, "'", "`", "//":
			return -1
		}
		start += match[1]
	}
}
