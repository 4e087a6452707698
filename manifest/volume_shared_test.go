package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"mariposa/manifest"
)

const twoThatShare = `services:
  one: {compute_type: process, command: [x], volumes: [files:/a, own:/b]}
  two: {compute_type: COMPUTE, volumes: [files:/c]MORE}
volumes: {files: {size: 1g, shared: SHARED}, own: }
`

func shares(compute, more, shared string) []byte {
	return []byte(strings.NewReplacer("COMPUTE", compute, "MORE", more, "SHARED", shared).Replace(twoThatShare))
}

func TestAVolumeIsSharedByServicesOfOneComputeType(t *testing.T) {
	t.Parallel()
	shared, err := manifest.Parse(shares("process", ", command: [x]", "true"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := manifest.Parse(shares("process", ", command: [x]", "false"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if got := shared.ByName[name].SharedVolumes; !slices.Equal(got, []string{"files"}) {
			t.Errorf("%s shares %v", name, got)
		}
		if own.ByName[name].SharedVolumes != nil || own.ByName[name].Digest == shared.ByName[name].Digest {
			t.Errorf("%s is the same, whether it shares a volume or not", name)
		}
	}
	for compute, want := range map[string]string{
		"dummy": "shares volume \"files\" with service \"one\", which has another compute_type",
		"kvm":   "virtual machines cannot share a volume; remove shared from volume \"files\"",
	} {
		more := ""
		if compute == "kvm" {
			more = ", image: x, memory: 1g"
		}
		if _, err := manifest.Parse(shares(compute, more, "true")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", compute, err)
		}
		if _, err := manifest.Parse(shares(compute, more, "false")); err != nil {
			t.Errorf("%s, each with its own: %v", compute, err)
		}
	}
}
