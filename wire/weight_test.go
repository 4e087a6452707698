package wire_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/wire"
)

// texts draws usual texts and hostile ones.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.StringOf(rapid.SampledFrom([]rune("<>&\"\\\x00\n\u2028\u2029ü"))),
	)
}

func randomVariables() *rapid.Generator[[]mariposa.Variable] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) mariposa.Variable {
		return mariposa.Variable{Name: texts().Draw(t, "name"), Value: texts().Draw(t, "value")}
	}), 0, 6)
}

func size(t *rapid.T, f wire.Frame) int {
	b, err := wire.Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

func TestNothingWeighsMoreInAFrameThanItsWeight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		it := wire.MdataItem{ID: texts().Draw(t, "id"), Number: rapid.Int64().Draw(t, "number"), Values: randomVariables().Draw(t, "values")}
		empty := size(t, wire.Frame{Mdata: &wire.Mdata{}})
		if got := size(t, wire.Frame{Mdata: &wire.Mdata{Items: []wire.MdataItem{it}}}) - empty - len(`"items":[]`); got > it.Weight() {
			t.Fatalf("values of weight %d take %d bytes", it.Weight(), got)
		}
		w := &mariposa.Workload{
			Compute: "process", Image: texts().Draw(t, "image"), Command: rapid.SliceOf(texts()).Draw(t, "command"),
			Entrypoint: rapid.SliceOf(texts()).Draw(t, "entrypoint"), Environment: randomVariables().Draw(t, "environment"),
			WorkingDir: texts().Draw(t, "working_dir"), User: texts().Draw(t, "user"), DNS: rapid.SliceOf(texts()).Draw(t, "dns"), DNSSearch: rapid.SliceOf(texts()).Draw(t, "dns_search"),
			Memory: rapid.Int64().Draw(t, "memory"), MilliCPU: rapid.Int64().Draw(t, "cpu"),
			Ports: []mariposa.Port{{Host: rapid.Int().Draw(t, "host"), Target: rapid.Int().Draw(t, "target")}},
			Tags:  randomVariables().Draw(t, "tags"), Files: randomVariables().Draw(t, "files"), StopTimeout: -time.Second,
			Restart: mariposa.Restart{Policy: mariposa.RestartUnlessStopped, Max: rapid.Int().Draw(t, "max")},
			Dummy:   &mariposa.Dummy{UpdateInPlaceProp: texts().Draw(t, "prop"), Fail: true, Wait: time.Hour, MaxWait: time.Hour},
		}
		bare := size(t, wire.Frame{Assign: &wire.Assign{}})
		if got := size(t, wire.Frame{Assign: &wire.Assign{Workloads: map[string]*mariposa.Workload{"": w}}}) - bare; got > wire.WorkloadWeight(w) {
			t.Fatalf("a workload of weight %d takes %d bytes", wire.WorkloadWeight(w), got)
		}
	})
}

func TestPackedValuesFitTheirFramesAndNoneIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 1000, 300 << 10, 2 << 20}), 0, 5).Draw(t, "sizes")
		many := rapid.SampledFrom([]int{0, 3, 1200}).Draw(t, "many")
		var items []wire.MdataItem
		for n := range len(sizes) + many {
			it := wire.MdataItem{ID: strings.Repeat("i", n%7) + string(rune('a'+n%26)), Number: int64(n)}
			if n < len(sizes) {
				it.Values = []mariposa.Variable{{Name: "v", Value: strings.Repeat("x", sizes[n])}}
			}
			items = append(items, it)
		}
		frames, heavy := wire.Pack(items)
		var numbers []int64
		for _, m := range frames {
			if len(m.Items) == 0 || len(m.Items) > wire.Batch {
				t.Fatalf("a frame of %d items", len(m.Items))
			}
			if n := size(t, wire.Frame{Seq: 1 << 60, Mdata: m}); n > wire.MaxFrame || (n > 2<<20 && len(m.Items) > 1) {
				t.Fatalf("a frame of %d items has %d bytes", len(m.Items), n)
			}
			for _, it := range m.Items {
				numbers = append(numbers, it.Number)
			}
		}
		if !slices.IsSorted(numbers) {
			t.Fatalf("the order is lost: %v", numbers)
		}
		if len(numbers) != len(items) || len(heavy) > 0 {
			t.Fatalf("%d of %d are left, %d are too heavy", len(numbers), len(items), len(heavy))
		}
	})
}

func TestWhatFitsNoFrameIsHandedBack(t *testing.T) {
	t.Parallel()
	item := func(n int) wire.MdataItem {
		return wire.MdataItem{ID: "i", Values: []mariposa.Variable{{Name: "v", Value: strings.Repeat("x", n)}}}
	}
	frames, heavy := wire.Pack([]wire.MdataItem{item(1), item(wire.MaxFrame), item(wire.MaxWeight - 200), item(2)})
	if len(frames) != 3 || len(heavy) != 1 || len(heavy[0].Values[0].Value) != wire.MaxFrame {
		t.Fatalf("%d frames, and %d are too heavy", len(frames), len(heavy))
	}
	b, err := wire.Encode(wire.Frame{Seq: 1 << 60, Mdata: frames[1]})
	if err != nil || len(b) > wire.MaxFrame {
		t.Errorf("the heaviest takes %d bytes (%v)", len(b), err)
	}
}
