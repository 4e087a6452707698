package cli

import (
	"regexp"
	"strings"

	"mariposa"
)

// spoken translates what the server says about HTTP into flags and words of the command
// line. The server's sentences are for everyone who uses the API; all that has to be said
// differently here is in this table. The first match of each row is replaced.
var spoken = []struct {
	api *regexp.Regexp
	cli string
}{
	{regexp.MustCompile(`, \?force=true\)`), ")"},                                // it names the command already
	{regexp.MustCompile(` \(\?cascade=true\)`), ""},                              // likewise
	{regexp.MustCompile(`\?organization=\S+ \((-o \S+)\)`), "$1"},                // likewise
	{regexp.MustCompile(`delete it with \?force=true`), "delete it with -f"},     // project delete
	{regexp.MustCompile(`or pass \?force=true`), "or overwrite it with --force"}, // project update
	{regexp.MustCompile(`with \?previous=,`), "with --previous,"},                // project update
	{regexp.MustCompile(`\?previous=(\S)`), "--previous $1"},                     // project update
	{regexp.MustCompile(`pass \?cas=0`), "give 0 as CAS"},                        // meta set
	{regexp.MustCompile(`pass it as \?name=, or in a JSON body as name`), "give it as an argument"},
	{regexp.MustCompile(`\bnull (for|sets) no limit`), "none $1 no limit"}, // org quota
	{regexp.MustCompile(`\bstored_per_project\b`), "--stored-per-project"}, // org quota
	{regexp.MustCompile(`\bwith_scale\b`), "--with-scale"},                 // project revert
	{regexp.MustCompile(`^rolling, canary, scale, --with-scale: `), "--rolling, --canary and --with-scale cannot be used: "},
	{regexp.MustCompile(`the path says (\S+), the body (\S+)`), "it is called both $1 and $2"},
	{regexp.MustCompile(`^the body of the request (is larger|has)`), "the input $1"}, // any
	{regexp.MustCompile(`^the body of the request did not arrive`), "the input did not arrive"},
	{regexp.MustCompile(`^the body of the request is empty: it must be JSON`), "there is no input"},
}

// speak puts a sentence of the server into the words of the command line.
func speak(sentence string) string {
	for _, s := range spoken {
		sentence = s.api.ReplaceAllString(sentence, s.cli)
	}
	return sentence
}

// flagOf returns the flag for a field of a request's JSON. Fields of a document that the user
// wrote keep their names.
func flagOf(f mariposa.Fault) string {
	if f.Line > 0 || strings.Contains(f.Field, ".") {
		return f.Field
	}
	return speak(f.Field)
}
