package converge

import (
	"reflect"
	"testing"

	"mariposa"
)

// A difference in any field of a status must be stored and causes another visit.
func TestStatusesThatDifferInOneFieldAreNotTheSame(t *testing.T) {
	of := reflect.TypeFor[mariposa.ServiceStatus]()
	for i := range of.NumField() {
		a, b := &mariposa.ServiceStatus{}, &mariposa.ServiceStatus{}
		f := reflect.ValueOf(b).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int:
			f.SetInt(1)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"x"}))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Struct:
			f.Set(reflect.ValueOf(dawn))
		default:
			t.Fatalf("%s is a %s, which this test does not know", of.Field(i).Name, f.Kind())
		}
		if sameStatus(a, b) || sameStatus(b, a) {
			t.Errorf("statuses that differ in %s are the same", of.Field(i).Name)
		}
		if same := *b; !sameStatus(b, &same) {
			t.Errorf("a status with %s is not the same as its copy", of.Field(i).Name)
		}
	}
}
