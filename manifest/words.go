package manifest

import (
	"errors"
	"strings"
)

var (
	errOpenQuote = errors.New("contains a quote that is never closed")
	errOpenSlash = errors.New("ends in a backslash")
)

// splitWords splits a command written as one text into words: at white space,
// with single quotes, double quotes and backslashes as in a shell, but with no
// shell: nothing is expanded. An interpolation is never split.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	quote, inWord := byte(0), false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '{' && interpolationLen(s[i:]) > 0:
			n := interpolationLen(s[i:])
			word.WriteString(s[i : i+n])
			i, inWord = i+n-1, true
		case c == quote && quote != 0:
			quote = 0
		case quote == '\'':
			word.WriteByte(c)
		case c == '\\' && (quote == 0 || (i+1 < len(s) && strings.IndexByte("\"\\$`\n", s[i+1]) >= 0)):
			if i++; i == len(s) {
				return nil, errOpenSlash
			}
			word.WriteByte(s[i])
			inWord = true
		case quote == '"':
			word.WriteByte(c)
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, errOpenQuote
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// joinWords writes words as one text that splitWords splits again.
func joinWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n\"'\\{") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted[i] = w
	}
	return strings.Join(quoted, " ")
}
