package manifest

import (
	"testing"

	"mariposa/manifest/document"
)

func readText(t testing.TB, text string) *document.Node {
	t.Helper()
	node, faults := document.Read([]byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return node
}
