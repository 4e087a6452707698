package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// inErrors finds error texts in the source of the server.
var inErrors = regexp.MustCompile("(?:conflict|invalid|notFound|Errorf)\\((?:mariposa\\.[A-Za-z]+, )?[\"`]([^\\n]*?)[\"`](?:,|\\)|\\+)")

// httpWords finds terms that only API clients understand.
var httpWords = regexp.MustCompile(`[?&][a-z_]+=|\bnull (for|sets)\b|\bthe body of the request\b|\bthe request body is\b`)

// HTTP terms in the server's errors are translated for the command line.
func TestErrorsOfTheServerAreSpokenInTheWordsOfTheCommandLine(t *testing.T) {
	t.Parallel()
	found := 0
	for _, room := range []string{"api", "auth", "change", "fleet", "queue"} {
		files, err := filepath.Glob("../" + room + "/*.go")
		must(t, err)
		for _, file := range files {
			if ok, _ := filepath.Match("*_test.go", filepath.Base(file)); ok {
				continue
			}
			source, err := os.ReadFile(file)
			must(t, err)
			for _, m := range inErrors.FindAllSubmatch(source, -1) {
				if !httpWords.Match(m[1]) {
					continue
				}
				found++
				if said := speak(string(m[1])); httpWords.MatchString(said) {
					t.Errorf("%s: the command line says %q: add a row to the table in wording.go", file, said)
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d errors speak of HTTP: does this test still find them?", found)
	}
}
