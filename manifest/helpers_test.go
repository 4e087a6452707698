package manifest

import (
	"testing"

	"go.yaml.in/yaml/v3"
)

func readText(t testing.TB, text string) *yaml.Node {
	t.Helper()
	node, faults := read([]byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return node
}
