#!/bin/sh
# The first process of the guest that linux_guest.py makes. Tests wait for its lines, which begin with "tiny:".
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
for module in $(cat /lib/order); do
    insmod "/lib/$module"
done
echo "tiny: up after $(cut -d' ' -f1 /proc/uptime) s, $(awk '/MemTotal/{print $2}' /proc/meminfo) kB"

# The power button ends it.
mkdir -p /etc/acpi/PWRF /var/run
printf '#!/bin/sh\necho "tiny: power button" >/dev/console\nsync\npoweroff -f\n' >/etc/acpi/PWRF/00000080
chmod +x /etc/acpi/PWRF/00000080
acpid -c /etc/acpi -l /dev/null

# Disks, and the number of this start, which is kept on the first one behind its file system.
n=0
while [ $n -lt 30 ] && ! ls /dev/[sv]da >/dev/null 2>&1; do
    n=$((n + 1))
    usleep 100000
done
for size in /sys/block/[sv]d*/size; do
    [ -e "$size" ] || continue
    disk=$(basename "$(dirname "$size")")
    echo "tiny: disk $disk $(cat "$size") sectors serial $(cat "/sys/block/$disk/serial" 2>/dev/null)"
done
for disk in /dev/vda /dev/sda; do
    [ -b $disk ] || continue
    boots=$(dd if=$disk bs=512 skip=COUNTER_SECTOR count=1 2>/dev/null | tr -d '\0' | sed -n 's/^boots=\([0-9]*\).*/\1/p')
    boots=$((${boots:-0} + 1))
    echo "boots=$boots" >/tmp/boots
    dd if=/tmp/boots of=$disk bs=512 seek=COUNTER_SECTOR conv=sync,notrunc 2>/dev/null && sync && echo "tiny: boot $boots"
    break
done

# The config drive.
drive=$(findfs LABEL=config-2 2>/dev/null)
if [ -n "$drive" ] && mount -o ro "$drive" /mnt 2>/dev/null; then
    echo "tiny: config drive $drive"
    for file in /mnt/openstack/latest/*; do
        echo "tiny: $(basename "$file") sha256 $(sha256sum "$file" | cut -c1-64)"
    done
    echo "tiny: meta_data $(tr -d '\n' </mnt/openstack/latest/meta_data.json)"
    [ -f /mnt/openstack/latest/network_data.json ] && awk -f /lib/flatten.awk /mnt/openstack/latest/network_data.json >/tmp/network
    umount /mnt
else
    echo "tiny: no config drive"
fi

# The network: fixed addresses of the config drive, elsewhere DHCP.
touch /tmp/network
get() { sed -n "s|^$1=||p" /tmp/network; }
interface_of() { # a link's number
    basename "$(dirname "$(grep -il "$(get "links.$1.ethernet_mac_address")" /sys/class/net/*/address)")"
}
number_of() { # a link's id
    sed -n "s|^links\.\([0-9]*\)\.id=$1\$|\1|p" /tmp/network
}
ip link set lo up
k=0
while [ -n "$(get "links.$k.id")" ]; do
    mtu=$(get "links.$k.mtu")
    case $mtu in [0-9]*) ip link set "$(interface_of $k)" mtu "$mtu" ;; esac
    k=$((k + 1))
done
n=0
while [ -n "$(get "networks.$n.link")" ]; do
    interface=$(interface_of "$(number_of "$(get "networks.$n.link")")")
    address=$(get "networks.$n.ip_address")
    if [ -n "$address" ] && [ "$(get "networks.$n.type")" = ipv4 ]; then
        ifconfig "$interface" "$address" netmask "$(get "networks.$n.netmask")" up
        echo "$interface" >>/tmp/static
        r=0
        while [ -n "$(get "networks.$n.routes.$r.gateway")" ]; do
            route add -net "$(get "networks.$n.routes.$r.network")" netmask "$(get "networks.$n.routes.$r.netmask")" \
                gw "$(get "networks.$n.routes.$r.gateway")"
            r=$((r + 1))
        done
    fi
    n=$((n + 1))
done
for path in /sys/class/net/e*; do
    [ -e "$path" ] || continue
    interface=$(basename "$path")
    how=static
    if ! grep -qs "^$interface$" /tmp/static; then
        how=dhcp
        ip link set "$interface" up
        udhcpc -i "$interface" -s /lib/udhcpc -q -n -t 5 -T 2 >/dev/null 2>&1
    fi
    address=$(ip -4 -o addr show "$interface" | awk '{print $4}')
    echo "tiny: $interface mac $(cat "$path/address") $how ${address:-none} mtu $(cat "$path/mtu")"
done
echo "tiny: route $(ip route | sed -n 's/^default via \([^ ]*\).*/\1/p')"

echo "tiny: READY"
n=0
while :; do
    sleep 2
    n=$((n + 1))
    echo "tiny: tick $n"
done
