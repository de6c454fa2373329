package expression

import "strings"

// Size estimates the size of an expression after compilation, without compiling it. It returns the number of terms,
// which are names, literals, operators, lists and maps, and the number of instructions in the constant regular
// expressions. For an expression that does not compile, the numbers are arbitrary.
func Size(text string) (terms, regexInstructions int) {
	matches := strings.Contains(text, "match") || strings.Contains(text, "find")
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '"' || c == '\'':
			length := lengthOfLiteral(text[i:], isRaw(text[:i]))
			if length < 0 {
				length = len(text) - i
			}
			if matches {
				if n, err := instructions(strings.Trim(text[i:i+length], `"'`)); err == nil {
					regexInstructions += n
				}
			}
			terms++
			i += length
		case isOfName(c):
			for i < len(text) && isOfName(text[i]) {
				i++
			}
			terms++
		default:
			if strings.IndexByte("[{+-*/%!<>=&|?", c) >= 0 {
				terms++
			}
			i++
		}
	}
	return terms, regexInstructions
}

func isOfName(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
