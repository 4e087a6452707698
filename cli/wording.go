package cli

import (
	"regexp"
	"strings"

	"mariposa"
)

// spoken translates HTTP terms in the server's messages into flags and terms of the
// command line. The server's messages are for all API clients, and this table contains
// everything that differs here. The first match of each row is replaced.
var spoken = []struct {
	api *regexp.Regexp
	cli string
}{
	{regexp.MustCompile(`, \?force=true\)`), ")"},                                // it already names the command
	{regexp.MustCompile(` \(\?cascade=true\)`), ""},                              // likewise
	{regexp.MustCompile(`\?organization=\S+ \((-o \S+)\)`), "$1"},                // likewise
	{regexp.MustCompile(`delete it with \?force=true`), "delete it with -f"},     // project delete
	{regexp.MustCompile(`or pass \?force=true`), "or overwrite it with --force"}, // project update
	{regexp.MustCompile(`with \?previous=,`), "with --previous,"},                // project update
	{regexp.MustCompile(`\?previous=(\S)`), "--previous $1"},                     // project update
	{regexp.MustCompile(`pass \?cas=0`), "give 0 as CAS"},                        // meta set
	{regexp.MustCompile(`pass it as \?name=, or as name in a JSON body`), "give it as an argument"},
	{regexp.MustCompile(`\bnull for (no|the default) limit`), "none for $1 limit"}, // org quota
	{regexp.MustCompile(`\bstored_per_project\b`), "--stored-per-project"},         // org quota
	{regexp.MustCompile(`\bwith_scale\b`), "--with-scale"},                         // project revert
	{regexp.MustCompile(`^rolling, canary, scale, --with-scale: `), "--rolling, --canary and --with-scale cannot be used: "},
	{regexp.MustCompile(`(\S+) in the path, but (\S+) in the request body`), "it is called both $1 and $2"},
	{regexp.MustCompile(`^the request body (is too large|has)`), "the input $1"}, // any
	{regexp.MustCompile(`^timed out waiting for the request body`), "timed out waiting for the input"},
	{regexp.MustCompile(`^the request body is empty: it must be JSON`), "there is no input"},
}

// speak translates a message of the server for the command line.
func speak(sentence string) string {
	for _, s := range spoken {
		sentence = s.api.ReplaceAllString(sentence, s.cli)
	}
	return sentence
}

// flagOf returns the flag for a field of a JSON request. Fields of a document that the
// user wrote keep their names.
func flagOf(f mariposa.Fault) string {
	if f.Line > 0 || strings.Contains(f.Field, ".") {
		return f.Field
	}
	return speak(f.Field)
}
